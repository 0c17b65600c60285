package reconcilertest

import (
	"bytes"
	"strconv"
	"strings"
)

// frames cuts what a NATS client writes into the protocol's frames (NATS client protocol: a line, and for PUB and HPUB a
// payload of the size that the line ends with).
type frames struct{ rest []byte }

type frame []byte

func (p *frames) split(b []byte) (whole []frame) {
	p.rest = append(p.rest, b...)
	for {
		end := bytes.Index(p.rest, []byte("\r\n"))
		if end < 0 {
			return whole
		}
		size := end + 2
		fields := strings.Fields(string(p.rest[:end]))
		if len(fields) > 0 && (fields[0] == "PUB" || fields[0] == "HPUB") {
			if n, err := strconv.Atoi(fields[len(fields)-1]); err == nil {
				size += n + 2
			}
		}
		if len(p.rest) < size {
			return whole
		}
		whole = append(whole, frame(bytes.Clone(p.rest[:size])))
		p.rest = p.rest[size:]
	}
}

// effect reports whether a frame changes something that outlives the client, apart from its own lease.
func (f frame) effect() bool {
	verb, rest, _ := bytes.Cut(f, []byte(" "))
	if v := string(verb); v != "PUB" && v != "HPUB" {
		return false
	}
	subj, _, _ := strings.Cut(string(rest), " ")
	switch {
	case strings.HasPrefix(subj, "$JS.API."):
		return strings.HasPrefix(subj, "$JS.API.STREAM.MSG.DELETE.")
	case strings.Contains(subj, ".session."):
		return false
	case strings.HasPrefix(subj, "$JS.ACK."):
		return !bytes.Contains(f, []byte("+WPI"))
	}
	return true
}
