package coord

import (
	"fmt"

	"github.com/teralog/teralog/wire"
)

// A proposal is a turn in the making: commands are handled one after the
// other, each against what those before it changed, and what they change is
// gathered into one entry. Dropping it undoes all of them.
type proposal struct {
	image   *Image // durable
	draft   *draft // image with the changes so far; nil: none
	count   int    // of changes
	changes []byte // encoded
	answers []answer
	block   producerBlock
}

// nextProducer asks for one producer id, out of the block at hand.
type nextProducer struct{ AllocateProducers }

// A producerBlock is what is left of the producer ids taken last. Ids go out
// only after the entry that took them is durable. A stop loses the rest.
type producerBlock struct {
	next   wire.ProducerID
	left   int64
	offset wire.Offset // of the entry
}

// producerBlockSize bounds what a stop loses and how often an id costs a flush.
const producerBlockSize = 1000

// add handles one command.
func (p *proposal) add(e env, t task) {
	a := answer{done: t.done}
	if _, one := t.cmd.(nextProducer); one {
		a.result, a.err = p.giveProducer(e)
	} else {
		a.result, a.err = p.apply(e, t.cmd)
	}
	p.answers = append(p.answers, a)
}

func (p *proposal) apply(e env, cmd Command) (Result, error) {
	state := p.image
	if p.draft != nil {
		state = &p.draft.Image
	}
	records, result, err := e.handle(state, cmd)
	_, barrier := cmd.(Barrier)
	if err != nil || len(records) == 0 && !barrier {
		return result, err
	}
	if p.draft == nil {
		p.draft = p.image.edit()
		p.draft.version++
	}
	if barrier {
		return Result{Offset: p.draft.version}, nil
	}
	c := change{cmd.requestID(), checksum(cmd), records}
	if err := p.draft.replayChange(c); err != nil {
		panic(fmt.Sprintf("BUG: %T does not follow from metadata version %d: %v", cmd, p.image.version, err))
	}
	p.count++
	p.changes = appendChange(p.changes, c)
	result.Offset = p.draft.version
	return result, nil
}

func (p *proposal) giveProducer(e env) (Result, error) {
	if p.block.left == 0 {
		r, err := p.apply(e, AllocateProducers{Count: producerBlockSize})
		if err != nil {
			return Result{}, err
		}
		p.block = producerBlock{r.First, r.Count, r.Offset}
	}
	id := p.block.next
	p.block.next++
	p.block.left--
	return Result{Offset: p.block.offset, First: id, Count: 1}, nil
}
