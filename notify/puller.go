package notify

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// puller decides what to ask the server for. It belongs to the goroutine of Consumer.Run.
//
// It never has more pulls outstanding than there are free workers, so a message never waits here behind a worker that is busy
// while another replica is free. nats.go's Consume is not used: it prefetches, and it can stall for half a
// minute on a lost wake-up or a 503.
type puller struct {
	c      *Consumer
	inbox  string
	lanes  [laneCount]laneState
	open   map[uint64]*request
	lastID uint64
	turns  int       // grants made while both lanes had a backlog
	sent   time.Time // when the last pull was sent
}

type laneState struct {
	subject string
	backlog uint64    // what the server said is waiting, an estimate
	rest    time.Time // no pulls before then
	errs    int       // pulls in a row that were refused or not answered
	probe   time.Time // when to ask again although nothing is known to wait
}

// request is a pull that the server may still answer.
type request struct {
	lane     int
	left     int // messages it may still bring
	expires  time.Time
	connects uint64 // how often the connection had been made again when it was sent
}

func newPuller(c *Consumer, inbox string) *puller {
	p := &puller{c: c, inbox: inbox, open: map[uint64]*request{}}
	for i, l := range lanes(c.names, c.kind) {
		p.lanes[i].subject = "$JS.API.CONSUMER.MSG.NEXT." + c.stream + "." + l.consumer
	}
	return p
}

// pull sends what can be asked for now, and says when to look again.
func (p *puller) pull(now time.Time) (next time.Time) {
	p.expire(now)
	next = now.Add(pullExpires)
	if !p.c.nc.IsConnected() {
		return now.Add(errorPause) // what is sent now would pile up in the client and be served all at once
	}
	free := p.c.cfg.Free() - p.asked()
	if p.lanes[laneFresh].backlog > 0 && free < p.c.cfg.MaxFree/4 && now.Before(p.sent.Add(gather)) {
		return p.sent.Add(gather)
	}
	for free > 0 {
		lane, n, wait := p.choose(now, free)
		if n == 0 {
			break
		}
		p.send(now, lane, n, wait)
		free -= n
	}
	for _, r := range p.open {
		next = earlier(next, r.expires)
	}
	for _, l := range p.lanes {
		if l.rest.After(now) {
			next = earlier(next, l.rest)
		}
		if l.probe.After(now) {
			next = earlier(next, l.probe)
		}
	}
	return next
}

// choose grants free workers to a lane: how many, and how long the server shall keep the pull if nothing is there.
//
// A lane with a backlog gets them; if both have one, the later lane gets every laterShare-th grant. A lane of which no
// backlog is known keeps one pull waiting. Workers that are needed for fresh changes, or a single one, do not wait for
// later ones: these are asked for in between.
func (p *puller) choose(now time.Time, free int) (lane, n int, wait time.Duration) {
	fresh, later := &p.lanes[laneFresh], &p.lanes[laneLater]
	freshIdle := !p.askedOf(laneFresh) && !fresh.rest.After(now)
	laterIdle := !p.askedOf(laneLater) && !later.rest.After(now)
	freshBusy := fresh.backlog > 0 && !fresh.rest.After(now)
	laterBusy := later.backlog > 0 && !later.rest.After(now)
	switch {
	case freshBusy && laterBusy:
		if p.turns++; p.turns%laterShare == 0 {
			return laneLater, 1, pullExpires
		}
		return laneFresh, free - free/laterShare, pullExpires
	case laterBusy && freshIdle && free == 1:
		if p.turns++; p.turns%2 == 0 {
			return laneLater, 1, pullExpires
		}
		return laneFresh, 1, 0
	case laterBusy && freshIdle:
		return laneFresh, 1, pullExpires
	case laterBusy:
		return laneLater, free, pullExpires
	case laterIdle && free > 1 && !freshBusy:
		return laneLater, 1, pullExpires
	case laterIdle && !later.probe.After(now):
		later.probe = now.Add(probeEvery)
		return laneLater, 1, 0
	case freshBusy:
		return laneFresh, free, pullExpires
	case freshIdle && laterIdle:
		return laneFresh, free, probeEvery
	case freshIdle:
		return laneFresh, free, pullExpires
	}
	return 0, 0, 0
}

func (p *puller) send(now time.Time, lane, n int, wait time.Duration) {
	p.lastID++
	p.sent = now
	body := append(make([]byte, 0, 64), `{"batch":`...)
	body = strconv.AppendInt(body, int64(n), 10)
	if wait > 0 {
		body = strconv.AppendInt(append(body, `,"expires":`...), int64(wait), 10)
	} else {
		body = append(body, `,"no_wait":true`...)
	}
	body = append(body, '}')
	p.open[p.lastID] = &request{lane: lane, left: n, expires: now.Add(wait + pullGrace), connects: p.c.nc.Stats().Reconnects}
	if err := p.c.nc.PublishRequest(p.lanes[lane].subject, p.inbox+"."+strconv.FormatUint(p.lastID, 10), body); err != nil {
		p.c.report("pull", "send", err)
		p.failed(now, lane, err)
		delete(p.open, p.lastID)
	}
}

func (p *puller) asked() (n int) {
	for _, r := range p.open {
		n += r.left
	}
	return n
}

func (p *puller) askedOf(lane int) bool {
	for _, r := range p.open {
		if r.lane == lane {
			return true
		}
	}
	return false
}

func (p *puller) drain(ctx context.Context, in chan *nats.Msg) {
	for {
		select {
		case m := <-in:
			p.receive(ctx, m)
		default:
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
