package wire

// RecoveryRequest asks what the broker found when it started.
type RecoveryRequest struct{}

// RecoveryResponse is the report of the last recovery, a line per partition
// touched.
type RecoveryResponse struct {
	Lines []string
}

func (*RecoveryRequest) API() API { return APIRecovery }

func (*RecoveryRequest) AppendTo(dst []byte, _ Version) []byte { return dst }

func (*RecoveryRequest) Decode(*Reader, Version) {}

func (*RecoveryResponse) API() API { return APIRecovery }

func (m *RecoveryResponse) AppendTo(dst []byte, _ Version) []byte {
	return appendStrings(dst, m.Lines)
}

func (m *RecoveryResponse) Decode(r *Reader, _ Version) { m.Lines = readStrings(r, m.Lines) }
