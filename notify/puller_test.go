package notify

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPullerChoosesALane is the table of the puller's decisions.
func TestPullerChoosesALane(t *testing.T) {
	now := time.Now()
	type grant struct {
		lane, n int
		wait    time.Duration
	}
	nothing := grant{}
	for name, c := range map[string]struct {
		free                       int
		freshBacklog, laterBacklog uint64
		freshAsked, laterAsked     bool // a pull of the lane is open
		freshRests, laterRests     bool // the server refused the last one
		probed                     bool // the later lane was asked a moment ago
		turns                      int
		want                       grant
	}{
		"nothing is known: the later lane keeps one pull":               {free: 8, want: grant{laneLater, 1, pullExpires}},
		"and the fresh one the rest":                                    {free: 7, laterAsked: true, want: grant{laneFresh, 7, pullExpires}},
		"both are asked":                                                {free: 6, freshAsked: true, laterAsked: true, want: nothing},
		"a single worker asks the later lane without waiting":           {free: 1, want: grant{laneLater, 1, 0}},
		"then the fresh one, until the next question":                   {free: 1, probed: true, want: grant{laneFresh, 1, probeEvery}},
		"fresh backlog: all, once the later lane was asked":             {free: 8, freshBacklog: 100, freshAsked: true, probed: true, want: grant{laneFresh, 8, pullExpires}},
		"fresh backlog: the later lane is asked in between":             {free: 8, freshBacklog: 100, freshAsked: true, want: grant{laneLater, 1, 0}},
		"later backlog: fresh changes keep one pull":                    {free: 8, laterBacklog: 100, want: grant{laneFresh, 1, pullExpires}},
		"later backlog: it gets the rest":                               {free: 7, laterBacklog: 100, freshAsked: true, want: grant{laneLater, 7, pullExpires}},
		"later backlog, a single worker: in turn, fresh":                {free: 1, laterBacklog: 100, want: grant{laneFresh, 1, 0}},
		"later backlog, a single worker: in turn, later":                {free: 1, laterBacklog: 100, turns: 1, want: grant{laneLater, 1, pullExpires}},
		"both backlogs: three of four grants are fresh":                 {free: 8, freshBacklog: 100, laterBacklog: 100, want: grant{laneFresh, 6, pullExpires}},
		"both backlogs: every fourth is later":                          {free: 8, freshBacklog: 100, laterBacklog: 100, turns: 3, want: grant{laneLater, 1, pullExpires}},
		"both backlogs: three of four workers are fresh":                {free: 12, freshBacklog: 1, laterBacklog: 1, want: grant{laneFresh, 9, pullExpires}},
		"later backlog, a single worker that fresh changes do not need": {free: 1, laterBacklog: 1, freshAsked: true, want: grant{laneLater, 1, pullExpires}},
		"two workers: one waits in each lane":                           {free: 2, want: grant{laneLater, 1, pullExpires}},
		"a single worker is asked for already":                          {free: 1, freshAsked: true, probed: true, want: nothing},
		"both backlogs, a single worker":                                {free: 1, freshBacklog: 100, laterBacklog: 100, want: grant{laneFresh, 1, pullExpires}},
		"the fresh lane rests: the later one is served":                 {free: 8, freshBacklog: 100, laterBacklog: 100, freshRests: true, want: grant{laneLater, 8, pullExpires}},
		"the later lane rests: the fresh one is served":                 {free: 8, freshBacklog: 100, laterBacklog: 100, laterRests: true, want: grant{laneFresh, 8, pullExpires}},
		"both rest": {free: 8, freshBacklog: 100, laterBacklog: 100, freshRests: true, laterRests: true, want: nothing},
		"the later lane rests and nothing is known of the other": {free: 8, laterRests: true, want: grant{laneFresh, 8, pullExpires}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &puller{open: map[uint64]*request{}, turns: c.turns}
			p.lanes[laneFresh].backlog, p.lanes[laneLater].backlog = c.freshBacklog, c.laterBacklog
			if c.freshAsked {
				p.open[1] = &request{lane: laneFresh, left: 1}
			}
			if c.laterAsked {
				p.open[2] = &request{lane: laneLater, left: 1}
			}
			if c.freshRests {
				p.lanes[laneFresh].rest = now.Add(time.Second)
			}
			if c.laterRests {
				p.lanes[laneLater].rest = now.Add(time.Second)
			}
			if c.probed {
				p.lanes[laneLater].probe = now.Add(time.Second)
			}
			lane, n, wait := p.choose(now, c.free)
			require.Equal(t, c.want, grant{lane, n, wait})
		})
	}
}
