package reconciler

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// outage paces what depends on a server that is out of reach: the first try comes within a second, and a long outage is
// asked after at least every 15 s, which is how late work starts again once it is over.
var outage = requeue.Backoff{Base: time.Second, Cap: 15 * time.Second}

// gateAfter is how many calls in a row must fail before the gate closes: one object that the API chokes on, among others
// that it serves, must not hold those up.
const gateAfter = 3

// gate bounds dispatch while the API is out of reach: nothing is pulled but one probe at a time, and not more often than
// the backoff says. Work stays in its queue instead of going round in it.
type gate struct {
	mu       sync.Mutex
	failures int
	until    time.Time
}

// limit says how many of so many free workers may pull now, while so many are busy.
func (g *gate) limit(free, busy int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.failures < gateAfter:
		return free
	case busy > 0 || time.Now().Before(g.until):
		return 0
	}
	return min(free, 1)
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failures >= gateAfter
}

// note takes the result of a call of the API.
func (g *gate) note(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !outOfReach(err) {
		g.failures, g.until = 0, time.Time{}
		return
	}
	now := time.Now()
	if now.Before(g.until) {
		return // it was sent before the pause, and says nothing new
	}
	g.failures++
	if g.failures >= gateAfter {
		g.until = now.Add(outage.Delay(g.failures - gateAfter + 1))
	}
}

// outOfReach tells an API that cannot be reached, is overloaded or does not know us (its token has expired, say) from one that
// answers, be it with an error.
func outOfReach(err error) bool {
	switch {
	case errors.Is(err, apiclient.ErrConversion): // which is the hook of one kind
		return false
	case errors.Is(err, apiclient.ErrUnexpectedResponse): // of a proxy, or of a server at a wrong address
		return true
	}
	var p *apiclient.Problem
	if errors.As(err, &p) {
		switch p.Status {
		case http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	return errors.Is(err, apiclient.ErrUnavailable)
}
