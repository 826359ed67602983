package bench

import (
	"fmt"
	"runtime"
	"time"
)

// bound says why the generator was the bottleneck; "" if it was not.
func (r *Result) bound(reason string) {
	if reason != "" {
		r.GeneratorBound, r.GeneratorReason = true, &reason
	}
}

// verdict says whether producers were the bottleneck of a run, and notes in r
// what that rests on.
func (ps producers) verdict(l *load, r *Result) string {
	var waited, late time.Duration
	worst := time.Duration(0) // of lateness that was not waiting for room
	for _, p := range ps {
		waited += p.waited
		late = max(late, p.late)
		worst = max(worst, p.late-p.waited)
	}
	if l.rate > 0 {
		sent := 0.0
		for _, p := range ps {
			sent += over(float64(p.gave), p.giving.Seconds())
		}
		r.SentRate = &sent
		ms := float64(late) / 1e6
		r.LatestMillis = &ms
		return lateVerdict(worst)
	}
	if l.one {
		return ""
	}
	r.WaitedShare = ratio(waited.Seconds(), r.Seconds*float64(len(ps)))
	if r.Latency == nil || r.WaitedShare == nil {
		return ""
	}
	onTheWay := r.MBPerSecond * r.Latency.Mean / float64(len(ps)) // MB/s by µs: bytes, by Little's law
	return waitedVerdict(*r.WaitedShare, onTheWay/float64(l.batch), float64(l.inFlight))
}

// lateVerdict is the rule for a load with a rate.
func lateVerdict(late time.Duration) string {
	const allowed = 10 * time.Millisecond
	if late <= allowed {
		return ""
	}
	return fmt.Sprintf("a record was given %v late, and not because a window was full", late.Round(time.Millisecond))
}

// waitedVerdict is the rule for a load at full speed: producers hardly waited,
// and had fewer batches on their way than even one partition may have.
func waitedVerdict(waited, onTheWay, inFlight float64) string {
	const least = 0.05
	if waited >= least || onTheWay >= inFlight {
		return ""
	}
	return fmt.Sprintf("producers waited for room in their windows %.1f %% of the time only, with %.1f batches on their way of the %.0f that one partition may have",
		waited*100, onTheWay, inFlight)
}

// readersBusy is the rule for readers at full speed.
func readersBusy(r *Result, readers int) string {
	const busy, times = 0.9, 2
	if r.BrokerCores == nil {
		return ""
	}
	had := min(float64(readers), float64(runtime.NumCPU())-*r.BrokerCores)
	if r.ClientCores < busy*had || r.ClientCores < times**r.BrokerCores {
		return ""
	}
	return fmt.Sprintf("the readers used %.2f cores of the %.2f they could have had, the broker %.2f", r.ClientCores, had, *r.BrokerCores)
}
