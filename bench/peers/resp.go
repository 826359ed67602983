package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// A respConn is a connection to Redis. It speaks as much of the protocol as
// reading a stream takes.
type respConn struct {
	net.Conn
	r *bufio.Reader
}

func dialRESP(ctx context.Context, addr string) (*respConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		c.SetDeadline(deadline)
	}
	return &respConn{c, bufio.NewReaderSize(c, 1<<20)}, nil
}

// send writes one command: an array of its words.
//
//	*<words>\r\n$<length>\r\n<word>\r\n…
func (c *respConn) send(words ...string) error {
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	_, err := c.Write(b)
	return err
}

// head reads the line with which each reply, and each part of one, begins: its
// kind and a number. What Redis calls null is an array or a string of length -1.
func (c *respConn) head(kind byte) (int, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, fmt.Errorf("reply of Redis: %w", err)
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return 0, fmt.Errorf("reply of Redis: the line %q does not end in CR LF", line)
	}
	text := string(line[1 : len(line)-2])
	switch {
	case line[0] == '-':
		return 0, errors.New("Redis: " + text)
	case line[0] != kind:
		return 0, fmt.Errorf("reply of Redis: %q where %q should stand", line[0], kind)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 {
		return 0, fmt.Errorf("reply of Redis: %q is not a length", text)
	}
	return n, nil
}

// bulk reads a string into to, whose memory it uses again.
func (c *respConn) bulk(to []byte) ([]byte, error) {
	const longest = 1 << 20
	n, err := c.head('$')
	if err != nil {
		return nil, err
	}
	if n < 0 || n > longest {
		return nil, fmt.Errorf("reply of Redis: a string of %d bytes", n)
	}
	to = append(to[:0], make([]byte, n+2)...)
	if _, err := io.ReadFull(c.r, to); err != nil {
		return nil, fmt.Errorf("reply of Redis: %w", err)
	}
	return to[:n], nil
}

func (c *respConn) number(words ...string) (int, error) {
	if err := c.send(words...); err != nil {
		return 0, err
	}
	return c.head(':')
}

// walk reads a stream from its start, count entries at a time, until its end
// or until it has read most or some more, and returns how many it has read.
func (c *respConn) walk(stream string, count, most int) (entries int, err error) {
	last := []byte("0")
	for entries < most {
		if err := c.send("XREAD", "COUNT", strconv.Itoa(count), "STREAMS", stream, string(last)); err != nil {
			return entries, err
		}
		var n int
		if n, last, err = c.entries(last); err != nil || n == 0 {
			return entries, err
		}
		entries += n
	}
	return entries, nil
}

// entries reads the reply to one XREAD of one stream,
//
//	[[stream, [[id, [field, value, …]], …]]]  or null at the end
//
// and returns how many entries it has and the id of the last one. That of the
// one before is passed in last, whose memory is used again.
func (c *respConn) entries(last []byte) (n int, _ []byte, err error) {
	if streams, err := c.head('*'); err != nil || streams == -1 {
		return 0, last, err
	} else if streams != 1 {
		return 0, last, fmt.Errorf("reply of Redis: %d streams", streams)
	}
	if err := c.array(2); err != nil {
		return 0, last, err
	}
	value, err := c.bulk(nil) // the name of the stream
	if err != nil {
		return 0, last, err
	}
	if n, err = c.head('*'); err != nil {
		return 0, last, err
	}
	if n < 1 {
		return 0, last, fmt.Errorf("reply of Redis: a stream of %d entries", n)
	}
	for range n {
		if err := c.array(2); err != nil {
			return 0, last, err
		}
		if last, err = c.bulk(last); err != nil {
			return 0, last, err
		}
		words, err := c.head('*')
		if err != nil {
			return 0, last, err
		}
		for range words {
			if value, err = c.bulk(value); err != nil {
				return 0, last, err
			}
		}
	}
	return n, last, nil
}

func (c *respConn) array(want int) error {
	n, err := c.head('*')
	if err == nil && n != want {
		err = fmt.Errorf("reply of Redis: an array of %d, not of %d", n, want)
	}
	return err
}
