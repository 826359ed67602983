package wire

// InitProducerRequest asks for a producer id never given before.
type InitProducerRequest struct{}

// InitProducerResponse gives it, with the epoch to start from.
type InitProducerResponse struct {
	Producer ProducerID
	Epoch    int16
}

func (*InitProducerRequest) API() API { return APIInitProducer }

func (*InitProducerRequest) AppendTo(dst []byte, _ Version) []byte { return dst }

func (*InitProducerRequest) Decode(*Reader, Version) {}

func (*InitProducerResponse) API() API { return APIInitProducer }

func (m *InitProducerResponse) AppendTo(dst []byte, _ Version) []byte {
	dst = Append64(dst, m.Producer)
	return Append16(dst, m.Epoch)
}

func (m *InitProducerResponse) Decode(r *Reader, _ Version) {
	m.Producer = ProducerID(r.I64())
	m.Epoch = r.I16()
}
