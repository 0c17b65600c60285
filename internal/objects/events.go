package objects

import (
	"bytes"
	"encoding/json"
	"time"
)

// The types of the events of a watch.
const (
	// EventReset: what follows, up to EventSynced, is everything that is there.
	EventReset = "reset"
	// EventPut carries an object as it is now.
	EventPut = "put"
	// EventGone carries the key of an object that is not there any more, or not among those that are watched.
	EventGone = "gone"
	// EventSynced ends what began with EventReset.
	EventSynced = "synced"
	// EventHeartbeat says that nothing happened, up to its id.
	EventHeartbeat = "heartbeat"
)

const (
	// Heartbeat is how long a watch is silent at the most.
	Heartbeat = 15 * time.Second
	// EventStream is the media type of a watch.
	EventStream = "text/event-stream"
)

// Event is one event of a stream (HTML, section 9.2, "Server-sent events"). cursor and data have no line breaks.
func Event(kind, cursor string, data []byte) []byte {
	var b bytes.Buffer
	if cursor != "" {
		b.WriteString("id: " + cursor + "\n")
	}
	b.WriteString("event: " + kind + "\ndata: ")
	b.Write(data)
	b.WriteString("\n\n")
	return b.Bytes()
}

// Gone is the data of EventGone.
func Gone(k Key) []byte {
	data, _ := json.Marshal(struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	}{k.Kind, k.Name}) // two strings always encode
	return data
}
