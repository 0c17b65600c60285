package jsapi

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Listing is what a stream holds under a filter.
type Listing struct {
	// Subjects has the number of messages on each subject.
	Subjects map[string]uint64
	// Time is the clock of the server that answered the first request, which was sent and answered at Sent and Answered by the
	// clock here.
	Time, Sent, Answered time.Time
	// Config is the stream's.
	Config jetstream.StreamConfig
}

// List returns the subjects of a stream that match a filter, as its leader knows them. The server lists up to 100,000
// subjects in an answer (nats-server: JSMaxSubjectDetails), in order; more need several requests, between which a subject
// may be missed if one before it disappears.
func List(ctx context.Context, nc *nats.Conn, stream, filter string) (*Listing, error) {
	l := &Listing{Subjects: map[string]uint64{}}
	for offset := 0; ; {
		var resp struct {
			Total  int                    `json:"total"`
			Time   time.Time              `json:"ts"`
			Config jetstream.StreamConfig `json:"config"`
			State  struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		sent := time.Now()
		req := map[string]any{"subjects_filter": filter, "offset": offset}
		if err := Request(ctx, nc, "$JS.API.STREAM.INFO."+stream, req, &resp); err != nil {
			return nil, err
		}
		if offset == 0 {
			l.Time, l.Sent, l.Answered, l.Config = resp.Time, sent, time.Now(), resp.Config
		}
		maps.Copy(l.Subjects, resp.State.Subjects)
		offset += len(resp.State.Subjects)
		if len(resp.State.Subjects) == 0 || offset >= resp.Total {
			return l, nil
		}
	}
}
