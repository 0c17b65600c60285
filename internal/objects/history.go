package objects

import (
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

const (
	// KeptEvents is how many events of an object are told.
	KeptEvents = 100
	// KeepEvents is how long they are kept.
	KeepEvents = 7 * 24 * time.Hour
	// maxMessage bounds a message, in bytes: events are many.
	maxMessage = 1000
)

// happened are the words for the reasons for which controllers hear of a write.
var happened = map[string]string{
	Created: apiclient.HappenedCreated,
	Changed: apiclient.HappenedChanged,
	Deleted: apiclient.HappenedDeletionRequested,
	Retried: apiclient.HappenedRetryRequested,
	Paused:  apiclient.HappenedPaused,
	Resumed: apiclient.HappenedResumed,
}

// noteReasons are the reasons that a controller's note may have.
var noteReasons = []string{apiclient.HappenedTakenOver, apiclient.HappenedOverdue}

// Happened is what a write of by has done to an object. ok is false if it did nothing that people ask for later. One revision
// has one event, by which stores find it: so a note takes the place of what else a status patch says, which its record keeps.
func Happened(before, after *apiclient.Raw, e Effect, by string) (h apiclient.Happening, ok bool) {
	at := Now()
	h = apiclient.Happening{By: by, Count: 1, FirstAt: at, At: at, UID: after.UID, Generation: after.Generation, Revision: after.Revision}
	was, is := &before.Reconciliation, &after.Reconciliation
	switch {
	case e.Gone:
		h.Reason = apiclient.HappenedDeleted
	case e.Notify != "":
		h.Reason = happened[e.Notify]
	case e.Note != nil:
		h.Reason, h.Message = e.Note.Reason, bounded(e.Note.Message)
	case is.State != was.State || is.LastError != was.LastError || is.Failures > was.Failures || is.ObservedGeneration != was.ObservedGeneration:
		h.Reason, h.Generation = string(is.State), is.ObservedGeneration
		if is.LastError == "" && is.State == apiclient.StatePending {
			h.Reason = string(apiclient.StateReady) // of a generation that is not the latest any more
		}
		h.Message = bounded(is.LastError)
	default:
		return h, false
	}
	return h, true
}

// bounded is a message as it is kept.
func bounded(text string) string {
	text = strings.ReplaceAll(text, "\x00", "\uFFFD") // which PostgreSQL does not store as text
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "")
	}
	return text
}

// Summed makes one event of those that say the same in a row. They are in the order in which they happened, and come out in
// the opposite one.
func Summed(events []apiclient.Happening) []apiclient.Happening {
	sums := []apiclient.Happening{}
	for i := len(events) - 1; i >= 0; i-- {
		next := events[i]
		if n := len(sums); n > 0 && same(&sums[n-1], &next) {
			sums[n-1].Count += next.Count
			sums[n-1].FirstAt = next.FirstAt
			continue
		}
		sums = append(sums, next)
	}
	return sums
}

// same need not look at the uid: that an object was made stands between it and an earlier one.
func same(a, b *apiclient.Happening) bool {
	return a.Reason == b.Reason && a.Message == b.Message && a.By == b.By && a.Generation == b.Generation
}
