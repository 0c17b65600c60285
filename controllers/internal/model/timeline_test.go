package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// state is what an object was between two writes; object is nil while it was not there. The write that made it so took
// effect between earliest and latest.
type state struct {
	object           *apiclient.Raw
	by               *call
	effect           objects.Effect
	earliest, latest int64
}

// absent is that nothing is there.
var absent = state{latest: math.MaxInt64}

// timeline is the history of one object in the order of its revisions. It begins before the object was first made.
type timeline struct {
	key    objects.Key
	states []state
	// at is the index of the state that has a revision.
	at map[int64]int
	// explained are the calls that have made a state, or were answered with one.
	explained map[*call]bool
}

// newTimeline sorts the answers of one object by their revisions and replays them against the model.
func newTimeline(k objects.Key, calls []*call) (*timeline, error) {
	// Of several calls that may have made a state, the one that began first leaves most room for the others.
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.call, b.call) })
	tl := &timeline{key: k, states: []state{absent}, at: map[int64]int{}, explained: map[*call]bool{}}
	byRevision := map[int64][]*call{}
	var gone []*call
	for _, c := range calls {
		switch {
		case c.err == nil && c.got != nil:
			byRevision[c.got.Revision] = append(byRevision[c.got.Revision], c)
		case c.err == nil:
			gone = append(gone, c)
		}
	}
	revisions := make([]int64, 0, len(byRevision))
	for r := range byRevision {
		revisions = append(revisions, r)
	}
	slices.Sort(revisions)
	for _, r := range revisions {
		if err := tl.reach(byRevision[r]); err != nil {
			return nil, err
		}
	}
	if final := calls[len(calls)-1]; tl.last().object != nil && final.err != nil {
		tl.states = append(tl.states, absent)
	}
	for _, c := range calls {
		if at := tl.at[c.revision()]; at > 0 && tl.states[at].by != c {
			tl.seen(at, c.call, c.ret)
		}
	}
	if err := tl.bound(); err != nil {
		return nil, err
	}
	if err := tl.end(gone); err != nil {
		return nil, err
	}
	return tl, tl.bound()
}

func (tl *timeline) last() *state { return &tl.states[len(tl.states)-1] }

// reach adds the state that the calls were answered with: one of them made it, to the others it was no news.
func (tl *timeline) reach(calls []*call) error {
	got := calls[0].got
	for _, c := range calls[1:] {
		if text(c.got) != text(got) {
			return fmt.Errorf("two objects have one revision:\n%s\n%s", calls[0], c)
		}
	}
	if before := tl.last().object; before != nil && before.UID != got.UID {
		tl.states = append(tl.states, absent) // it was removed in between, by a call whose answer has no revision
	}
	before := tl.last().object
	why := fmt.Errorf("no call made revision %d of %s\n\tof %s\n\tseen by %s", got.Revision, tl.key, describe(before), calls[0])
	for _, writer := range calls {
		e, err := tl.made(writer, before)
		if err == nil {
			err = tl.noNews(calls, writer)
		}
		if err == nil {
			tl.at[got.Revision] = len(tl.states)
			tl.states = append(tl.states, state{object: got, by: writer, effect: e, latest: math.MaxInt64})
			for _, c := range calls {
				tl.explained[c] = true
			}
			return nil
		}
		if writer.verb != "get" {
			why = fmt.Errorf("%w\n\tnot by %s\n\tbecause %w", why, writer, err)
		}
	}
	return why
}

// made checks that a call turned one object into the next, as the model would have. What the model cannot know (ids and
// times) may be anything where the model made it anew.
func (tl *timeline) made(c *call, before *apiclient.Raw) (objects.Effect, error) {
	after, e, err := c.step(tl.key, before)
	if err != nil {
		return e, err
	}
	if !e.Written || after == nil {
		return e, fmt.Errorf("it would have written nothing, or removed the object")
	}
	want := *after
	want.Revision = c.got.Revision
	if before == nil {
		want.UID, want.CreatedAt, want.ChangedAt = c.got.UID, c.got.CreatedAt, c.got.ChangedAt
		if slices.ContainsFunc(tl.states, func(s state) bool { return s.object != nil && s.object.UID == want.UID }) {
			return e, fmt.Errorf("uid %s was used before", want.UID)
		}
	} else {
		if after.Generation != before.Generation {
			want.ChangedAt = c.got.ChangedAt
		}
		if before.DeletedAt == nil && after.DeletedAt != nil && c.got.DeletedAt != nil {
			want.DeletedAt = c.got.DeletedAt
		}
		if after.RetryRequest != before.RetryRequest && c.got.RetryRequest != "" && c.got.RetryRequest != before.RetryRequest {
			want.RetryRequest, want.RetryRequestedAt = c.got.RetryRequest, c.got.RetryRequestedAt
		}
	}
	if text(&want) != text(c.got) {
		return e, fmt.Errorf("the model has %s", text(&want))
	}
	return e, nil
}

// noNews checks that calls which were answered with what another one had made wrote nothing themselves.
func (tl *timeline) noNews(calls []*call, writer *call) error {
	for _, c := range calls {
		if c == writer {
			continue
		}
		if _, e, err := c.step(tl.key, writer.got); err != nil || e.Written {
			return fmt.Errorf("%s should have written to it, too (or failed: %w)", c, err)
		}
	}
	return nil
}

// end finds the call that removed each object which was removed. A status patch names the object by its uid; of the
// deletions any fits that ran at the time: the one that ended first is taken, later objects need the others.
func (tl *timeline) end(gone []*call) error {
	slices.SortFunc(gone, func(a, b *call) int { return cmp.Compare(a.ret, b.ret) })
	for i := 1; i < len(tl.states); i++ {
		s, before := &tl.states[i], tl.states[i-1].object
		if s.object != nil {
			continue
		}
		j := slices.IndexFunc(gone, func(c *call) bool { return c.verb == "status" && c.patch.UID == before.UID })
		if j < 0 {
			j = slices.IndexFunc(gone, func(c *call) bool { return c.verb == "delete" && c.call < s.latest && s.earliest < c.ret })
		}
		if j < 0 {
			return fmt.Errorf("nobody removed %s", text(before))
		}
		s.by = gone[j]
		gone = slices.Delete(gone, j, j+1)
		after, e, err := s.by.step(tl.key, before)
		if err != nil || after != nil {
			return fmt.Errorf("%s\n\tcannot have removed %s (%w)", s.by, text(before), err)
		}
		s.effect = e
		tl.explained[s.by] = true
	}
	if len(gone) > 0 {
		return fmt.Errorf("%s\n\thad nothing left to remove", gone[0])
	}
	return nil
}

// bound narrows down when each write took effect: during its call, in the order of the revisions.
func (tl *timeline) bound() error {
	for i := range tl.states {
		s := &tl.states[i]
		if s.by != nil {
			s.earliest, s.latest = max(s.earliest, s.by.call), min(s.latest, s.by.ret)
		}
		if i > 0 {
			s.earliest = max(s.earliest, tl.states[i-1].earliest)
		}
	}
	for i := len(tl.states) - 2; i >= 0; i-- {
		tl.states[i].latest = min(tl.states[i].latest, tl.states[i+1].latest)
	}
	for i, s := range tl.states[1:] {
		if s.earliest >= s.latest {
			return fmt.Errorf("%s: out of order, or seen after it had passed (between %d and %d): %s\n\tcame after %s",
				tl.key, s.earliest, s.latest, describe(s.object), describe(tl.states[i].object))
		}
	}
	return nil
}

// seen notes that a state was there at some time between call and ret.
func (tl *timeline) seen(i int, call, ret int64) {
	tl.states[i].latest = min(tl.states[i].latest, ret)
	if i+1 < len(tl.states) {
		tl.states[i+1].earliest = max(tl.states[i+1].earliest, call)
	}
}

// during yields the states that may have been there at some time between call and ret.
func (tl *timeline) during(call, ret int64) (from, to int) {
	from, to = len(tl.states), 0
	for i := range tl.states {
		if tl.states[i].earliest < ret && call < tl.until(i) {
			from, to = min(from, i), i+1
		}
	}
	return from, to
}

// until is when a state was over at the latest.
func (tl *timeline) until(i int) int64 {
	if i+1 < len(tl.states) {
		return tl.states[i+1].latest
	}
	return math.MaxInt64
}

// explain checks that a call which changed nothing fits a state of its time: it was refused as the model would have.
func (tl *timeline) explain(c *call) error {
	from, to := tl.during(c.call, c.ret)
	for _, s := range tl.states[from:to] {
		_, e, err := c.step(tl.key, s.object)
		if err != nil && refusal(err) == refusal(c.err) && !e.Written {
			return nil
		}
	}
	why := fmt.Errorf("%s\n\tfits nothing that was there", c)
	for _, s := range tl.states[from:to] {
		why = fmt.Errorf("%w\n\tnot %s", why, describe(s.object))
	}
	return why
}

func describe(o *apiclient.Raw) string {
	if o == nil {
		return "nothing"
	}
	return text(o)
}
