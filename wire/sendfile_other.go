//go:build !linux

package wire

// sendFile is not offered by this system: every range is copied.
func (s *socket) sendFile(*FileRange, int64, int, bool) (sent int, ok, wait bool, err error) {
	return 0, false, false, nil
}
