package notify

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// receive handles a message or a status. Statuses end their pull; so does the last message that it may bring.
func (p *puller) receive(ctx context.Context, m *nats.Msg) {
	id := p.requestOf(m)
	r := p.open[id]
	if status := m.Header.Get("Status"); status != "" && m.Reply == "" { // a message is always to be acknowledged
		delete(p.open, id)
		if r != nil {
			p.status(r.lane, status, m)
		}
		return
	}
	meta, err := m.Metadata()
	if err != nil {
		p.c.report("read notification", "reply", fmt.Errorf("%s: %w", m.Subject, err))
		return
	}
	lane := laneFresh
	if strings.HasSuffix(meta.Consumer, "_later") {
		lane = laneLater
	}
	p.lanes[lane].backlog = meta.NumPending
	p.answered(lane)
	if r != nil {
		if r.left--; r.left == 0 {
			delete(p.open, id)
		}
	}
	p.c.deliver(ctx, lane, m, meta)
}

// requestOf finds the pull that a message answers. The server delivers to the reply subject of the pull, which the
// client shows as the subscription's subject only for statuses; messages keep their own subject.
func (p *puller) requestOf(m *nats.Msg) uint64 {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox+"."), 10, 64)
	if err != nil {
		return p.oldest(m)
	}
	return id
}

// oldest is the pull that the server is serving: it serves those of one consumer in the order they came.
func (p *puller) oldest(m *nats.Msg) (id uint64) {
	later := strings.Contains(m.Reply, "_later.")
	for i, r := range p.open {
		if (r.lane == laneLater) == later && (id == 0 || i < id) {
			id = i
		}
	}
	return id
}

func (p *puller) status(lane int, status string, m *nats.Msg) {
	l := &p.lanes[lane]
	description := m.Header.Get("Description")
	switch status {
	case "404", "408":
		l.backlog = 0
		p.answered(lane)
		return
	case "100":
		return
	}
	now := time.Now()
	err := fmt.Errorf("%s: the server says %s %s", l.subject, status, description)
	gone := status == "503" || strings.Contains(description, "Deleted")
	if gone {
		err = fmt.Errorf("%s: the stream or its consumer is gone, or JetStream is not enabled or still starting (%s %s)", l.subject, status, description)
	}
	p.failed(now, lane, err)
	p.c.report("pull", status+description, err)
	if gone {
		p.c.cfg.OnMissing()
	}
}

// deafAfter is how many pulls in a row may fail before the kind counts as not served: one may be lost with a leader.
const deafAfter = 3

// answered notes that the server serves a lane.
func (p *puller) answered(lane int) {
	p.lanes[lane].errs = 0
	p.c.setErr(lane, nil)
}

// failed has a lane rest after a pull that was refused or could not be sent.
func (p *puller) failed(now time.Time, lane int, err error) {
	l := &p.lanes[lane]
	l.rest = now.Add(min(maxErrorPause, errorPause<<min(l.errs, 10)))
	if l.errs++; l.errs >= deafAfter {
		p.c.setErr(lane, err)
	}
}

// unanswered notes a pull that got no answer at all, not even that there is nothing. A server that is up always answers, so
// several in a row mean that it did not hear, or may not be heard.
func (p *puller) unanswered(lane int) {
	l := &p.lanes[lane]
	if l.errs++; l.errs < deafAfter {
		return
	}
	err := fmt.Errorf("%s: no answer to %d pulls: the NATS user needs the right to publish to this subject, and to subscribe to %s.>",
		l.subject, deafAfter, p.inbox)
	if denied := jsapi.Denied(p.c.nc, l.subject); denied != nil {
		err = fmt.Errorf("%w; the connection was told: %w", err, denied)
	}
	p.c.setErr(lane, err)
	p.c.report("pull", "no answer", err)
}

// expire forgets pulls that the server should have answered and did not.
func (p *puller) expire(now time.Time) {
	for id, r := range p.open {
		if r.expires.After(now) {
			continue
		}
		delete(p.open, id)
		if r.connects != p.c.nc.Stats().Reconnects || !p.c.nc.IsConnected() { // it went down with the connection
			p.lanes[r.lane].errs = 0
			continue
		}
		p.unanswered(r.lane)
	}
}
