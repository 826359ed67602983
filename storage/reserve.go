package storage

import (
	"fmt"
	"syscall"
)

// A reserve is disk space taken up front, so that metadata, starts, deletes and
// trims go on when records have filled the disk. Its file is as long as what it
// holds. Records never take of it: they meet a full disk while it stands.
type reserve struct {
	fs   FS
	name string
	size int64 // bytes when full
}

const (
	reserveBytes = 64 << 20
	reserveSteps = 16 // it is given away in so many steps
)

// fill makes it whole again, unless that would leave less than as much again
// for records: else it would shrink and grow without end on a full disk.
func (r reserve) fill() error {
	f, err := r.fs.Open(r.name, Create)
	if err != nil {
		return err
	}
	defer f.Close()
	has, err := f.Size()
	if err != nil || has >= r.size {
		return err
	}
	_, free, err := r.fs.Space(r.name)
	if err != nil {
		return err
	}
	if free < r.size-has+r.size {
		return fmt.Errorf("%s: %d of %d bytes held, %d free: %w", r.name, has, r.size, free, syscall.ENOSPC)
	}
	// Allocated first, so that the length never claims what is not held.
	if err := f.Allocate(0, r.size); err != nil {
		return err
	}
	if err := f.Truncate(r.size); err != nil {
		return err
	}
	return syncFile(f)
}

// give frees one step of it; false: nothing was left. The sync lets the file
// system hand the blocks out at once.
func (r reserve) give() (bool, error) {
	f, err := r.fs.Open(r.name, ReadWrite)
	if notExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	has, err := f.Size()
	if err != nil || has == 0 {
		return false, err
	}
	if err := f.Truncate(max(0, has-r.size/reserveSteps)); err != nil {
		return false, err
	}
	return true, syncFile(f)
}

// Relieve frees a part of the reserve for something that must not fail for want
// of space, and returns whether there was any left. Never for records.
func (d *Dir) Relieve() bool {
	gave, err := d.reserve.give()
	if err != nil {
		d.settle(err)
		return false
	}
	return gave
}

// Reserved returns the bytes that the reserve holds now.
func (d *Dir) Reserved() (int64, error) {
	e, err := d.fs.Stat(d.reserve.name)
	if notExist(err) {
		return 0, nil
	}
	return e.Size, err
}

// refill lets the reserve grow back, if one is wanted.
func (d *Dir) refill() error {
	if d.reserve.size <= 0 {
		return nil
	}
	return d.reserve.fill()
}

// withReserve runs a step that may take of the reserve, again after each part
// it gets of it. A full disk that only an fsync tells of is a failed fsync.
func (d *Dir) withReserve(step func() error) error {
	for {
		err := step()
		if !isDiskFull(err) || !d.Relieve() {
			return err
		}
	}
}
