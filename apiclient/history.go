package apiclient

import (
	"context"
	"net/http"
	"time"
)

// What happened to an object, besides the states that controllers give it ([States]).
const (
	// HappenedCreated: it was made.
	HappenedCreated = "Created"
	// HappenedChanged: its spec was changed.
	HappenedChanged = "Changed"
	// HappenedRetryRequested, HappenedPaused and HappenedResumed: somebody asked for that.
	HappenedRetryRequested = "RetryRequested"
	HappenedPaused         = "Paused"
	HappenedResumed        = "Resumed"
	// HappenedDeletionRequested: somebody asked for its deletion, and finalizers remain.
	HappenedDeletionRequested = "DeletionRequested"
	// HappenedDeleted: it is gone.
	HappenedDeleted = "Deleted"
	// HappenedTakenOver: the replica that worked on it died, and another one works on it now.
	HappenedTakenOver = "TakenOver"
	// HappenedOverdue: a function ignores its deadline, or that its context was cancelled.
	HappenedOverdue = "Overdue"
)

// Happening is something that happened to an object, once or several times in a row.
type Happening struct {
	// Reason is one of the Happened constants, or the state ([States]) that a controller's reconcile came to.
	Reason string `json:"reason"`
	// Message is the error that a reconcile ended with, or that of a [Note], up to 1,000 bytes of it.
	Message string `json:"message,omitempty"`
	// By is the name of whoever asked: that of a token or of a client certificate. It is anonymous, or empty, where nobody is
	// asked for one.
	By string `json:"by,omitempty"`
	// Count is how often it happened, with nothing else in between.
	Count int64 `json:"count"`
	// FirstAt and At are when it first and last happened.
	FirstAt time.Time `json:"firstAt"`
	At      time.Time `json:"at"`
	// UID is that of the object: an earlier one of the name may have gone.
	UID string `json:"uid"`
	// Generation is that of the object, or for a state the one that the reconcile observed.
	Generation int64 `json:"generation"`
	// Revision is the one that the last of these writes made.
	Revision int64 `json:"revision"`
}

// Events are what happened to an object lately, the latest first: who changed it, and what its reconciles came to. What
// happens again in a row is told once, with its count. The API keeps the last 100 writes that tell something, for a week, and
// after the object is gone. It fails with [ErrNotFound] if nothing is known of the name.
func (c *Client[S, T]) Events(ctx context.Context, name string) ([]Happening, error) {
	var page struct {
		Items []Happening `json:"items"`
	}
	doing, err := c.doing("list the events of", name)
	if err != nil {
		return nil, err
	}
	_, err = c.do(ctx, call{doing: doing, method: http.MethodGet, path: c.path() + "/" + name + "/events", repeatable: true, out: &page})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}
