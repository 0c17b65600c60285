// Package subject holds the names that Evenkeel uses on a NATS server: subjects, streams, consumers and lock keys.
//
// Every name carries the shard of its object, a stable hash of kind and name, so that a large installation can spread
// shards over several streams later without renaming anything.
package subject

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Shards is the number of shards that objects hash to. It is part of every stored name and never changes.
const Shards = 64

// MaxName is the length limit of a kind and of a name, in bytes: that of a DNS-1123 label (RFC 1123, section 2.1).
const MaxName = 63

// Lanes of the work stream: the token behind the prefix.
const (
	laneFresh    = "n" // a change that somebody made
	laneLater    = "r" // requeues that came due, and resync
	laneSchedule = "s" // requeues that sleep
	laneHistory  = "h" // reserved: the last attempts of each object
	laneAside    = "x" // messages set aside because nobody can handle them
)

// Names builds names under one prefix. The zero value is not usable; Prefix must satisfy [CheckPrefix].
type Names struct{ Prefix string }

// Shard returns the shard of an object, 0 to Shards-1.
func Shard(kind, name string) int {
	h := fnv.New64a()
	h.Write([]byte(kind))
	h.Write([]byte{'/'})
	h.Write([]byte(name))
	return int(h.Sum64() % Shards)
}

// Fresh is the subject of the notification "look at this object now".
func (n Names) Fresh(kind, name string) string { return n.object(laneFresh, kind, name) }

// Later is the subject on which a requeue that came due, or a resync, asks for the object.
func (n Names) Later(kind, name string) string { return n.object(laneLater, kind, name) }

// Schedule is the subject of the pending requeue of an object: at most one message lives on it.
func (n Names) Schedule(kind, name string) string { return n.object(laneSchedule, kind, name) }

// Aside is the subject under which a message of a kind is set aside.
func (n Names) Aside(kind string) string { return n.Prefix + "." + laneAside + "." + kind }

// Sentinel is the subject of the message that stays at the head of the work stream for ever.
//
// With it, a filtered consumer on file storage never takes the server's slow path, which scans all subjects when
// nothing older than the next message is left (measured on nats-server 2.15.2: 5 ms per fetch at 100,000 objects).
func (n Names) Sentinel() string { return n.Prefix + ".sentinel" }

// FilterFresh matches every fresh notification of a kind.
func (n Names) FilterFresh(kind string) string { return n.filter(laneFresh, kind) }

// FilterLater matches every due requeue of a kind.
func (n Names) FilterLater(kind string) string { return n.filter(laneLater, kind) }

// FilterSchedule matches every pending requeue of a kind.
func (n Names) FilterSchedule(kind string) string { return n.filter(laneSchedule, kind) }

// WorkSubjects are the subjects of the work stream.
func (n Names) WorkSubjects() []string {
	return []string{
		n.Prefix + "." + laneFresh + ".>", n.Prefix + "." + laneLater + ".>",
		n.Prefix + "." + laneSchedule + ".>", n.Sentinel(),
	}
}

// HistorySubjects are the subjects of the history stream.
func (n Names) HistorySubjects() []string {
	return []string{n.Prefix + "." + laneHistory + ".>", n.Prefix + "." + laneAside + ".>"}
}

// WorkStream is the name of the stream that holds notifications and pending requeues.
func (n Names) WorkStream() string { return n.Prefix + "_work" }

// HistoryStream is the name of the stream that keeps what was set aside.
func (n Names) HistoryStream() string { return n.Prefix + "_history" }

// LockBucket is the name of the KV bucket that holds locks and sessions.
func (n Names) LockBucket() string { return n.Prefix + "_locks" }

// LockKey is the key of an object's lock, below the lock package's own prefix.
func LockKey(kind, name string) string {
	return kind + "." + strconv.Itoa(Shard(kind, name)) + "." + name
}

// ResyncLockKey is the key of the lock that lets one replica at a time search for missed objects of a kind. It has two
// tokens, so it is not the key of any object.
func ResyncLockKey(kind string) string { return "resync." + kind }

// ParseLockKey is the inverse of [LockKey].
func ParseLockKey(key string) (kind, name string, err error) {
	tokens := strings.Split(key, ".")
	if len(tokens) != 3 {
		return "", "", fmt.Errorf("lock key %q: want kind.shard.name", key)
	}
	return checkObject(tokens[0], tokens[1], tokens[2])
}

// Matches reports whether a subject matches one of the filters of this package: a prefix and ".>".
func Matches(filter, subject string) bool {
	return strings.HasPrefix(subject, strings.TrimSuffix(filter, ">"))
}

// Parse reads kind and name back from a subject of the fresh or the later lane, and refuses what no publisher of ours
// would have sent: wrong token count, a malformed name, or a shard that is not the object's own.
func (n Names) Parse(subject string) (kind, name string, err error) {
	rest, ok := strings.CutPrefix(subject, n.Prefix+".")
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) != 4 || (tokens[0] != laneFresh && tokens[0] != laneLater) {
		return "", "", fmt.Errorf("subject %q: want %s.(n|r).kind.shard.name", subject, n.Prefix)
	}
	return checkObject(tokens[1], tokens[2], tokens[3])
}

func checkObject(kind, shard, name string) (string, string, error) {
	if err := CheckObject(kind, name); err != nil {
		return "", "", err
	}
	if want := strconv.Itoa(Shard(kind, name)); shard != want {
		return "", "", fmt.Errorf("%s/%s: shard %q, want %s", kind, name, shard, want)
	}
	return kind, name, nil
}

// CheckObject reports whether kind and name can be a kind and a name: both DNS-1123 labels.
func CheckObject(kind, name string) error {
	if err := checkLabel("kind", kind); err != nil {
		return err
	}
	return checkLabel("name", name)
}

// CheckKind reports whether kind can be a kind: a DNS-1123 label.
func CheckKind(kind string) error { return checkLabel("kind", kind) }

// CheckPrefix reports whether p can be the first token of all subjects and the start of stream names.
func CheckPrefix(p string) error {
	if p == "" || strings.ContainsFunc(p, func(r rune) bool { return !alnum(r) && r != '-' && r != '_' && (r < 'A' || r > 'Z') }) {
		return fmt.Errorf("prefix %q: want letters, digits, '-' and '_'", p)
	}
	return nil
}

var errLabel = errors.New("want a DNS-1123 label: 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit")

func checkLabel(field, s string) error {
	bad := s == "" || len(s) > MaxName || s[0] == '-' || s[len(s)-1] == '-' ||
		strings.ContainsFunc(s, func(r rune) bool { return !alnum(r) && r != '-' })
	if bad {
		return fmt.Errorf("%s %q: %w", field, s, errLabel)
	}
	return nil
}

func alnum(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' }

func (n Names) object(lane, kind, name string) string {
	return n.Prefix + "." + lane + "." + kind + "." + strconv.Itoa(Shard(kind, name)) + "." + name
}

func (n Names) filter(lane, kind string) string { return n.Prefix + "." + lane + "." + kind + ".>" }
