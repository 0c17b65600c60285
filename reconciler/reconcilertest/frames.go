package reconcilertest

import (
	"bytes"
	"strconv"
	"strings"
)

// frames cuts what a NATS client or server writes into the protocol's frames (NATS client protocol: a line, and for
// messages a payload of the size that the line ends with).
type frames struct{ rest []byte }

type frame []byte

// verb is the first word of a frame.
func (f frame) verb() string {
	end := bytes.IndexAny(f, " \r")
	return string(f[:max(0, end)])
}

// fields are the words of a frame's line.
func (f frame) fields() []string {
	line, _, _ := bytes.Cut(f, []byte("\r\n"))
	return strings.Fields(string(line))
}

// publish returns the subject and the reply subject, which may be empty, of a message that a client sends.
func (f frame) publish() (subj, reply string, ok bool) {
	sizes := map[string]int{"PUB": 1, "HPUB": 2}[f.verb()] // how many sizes end the line
	if sizes == 0 {
		return "", "", false
	}
	fields := f.fields()
	if len(fields) == 3+sizes {
		reply = fields[2]
	}
	return fields[1], reply, true
}

// delivery returns the subject of a message that the server sends.
func (f frame) delivery() (subj string, ok bool) {
	if v := f.verb(); v != "MSG" && v != "HMSG" {
		return "", false
	}
	return f.fields()[1], true
}

func (p *frames) split(b []byte) (whole []frame) {
	p.rest = append(p.rest, b...)
	for {
		end := bytes.Index(p.rest, []byte("\r\n"))
		if end < 0 {
			return whole
		}
		size := end + 2
		switch line := frame(p.rest[:size]); line.verb() {
		case "PUB", "HPUB", "MSG", "HMSG":
			fields := line.fields()
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
	subj, _, ok := f.publish()
	switch {
	case !ok:
		return false
	case strings.HasPrefix(subj, "$JS.API."):
		return strings.HasPrefix(subj, "$JS.API.STREAM.MSG.DELETE.")
	case strings.Contains(subj, ".session."):
		return false
	case strings.HasPrefix(subj, "$JS.ACK."):
		return !bytes.Contains(f, []byte("+WPI"))
	}
	return true
}
