package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// prefix marks a token, so that people and scanners of leaked secrets know one when they see it.
	prefix = "ek"
	// idBytes and secretBytes are how much of a token's parts is random; written as hex, they are twice as long.
	idBytes, secretBytes = 8, 32
)

// Hash is what is kept of a token's secret: its SHA-256. A slow hash is for what people can remember; nobody guesses 256
// random bits.
type Hash [sha256.Size]byte

// NewToken makes a bearer token, ek_ID_SECRET. The id is public; text is for its owner alone, and hash is to be kept.
func NewToken() (id, text string, hash Hash) {
	var random [idBytes + secretBytes]byte
	_, _ = rand.Read(random[:]) // it never fails
	id = hex.EncodeToString(random[:idBytes])
	return id, prefix + "_" + id + "_" + hex.EncodeToString(random[idBytes:]), sha256.Sum256(random[idBytes:])
}

// ParseToken takes a token apart, in the one form that NewToken writes.
func ParseToken(text string) (id string, hash Hash, ok bool) {
	parts := strings.Split(text, "_")
	if len(parts) != 3 || parts[0] != prefix || !isHex(parts[1], idBytes) || !isHex(parts[2], secretBytes) {
		return "", hash, false
	}
	secret, err := hex.DecodeString(parts[2])
	return parts[1], sha256.Sum256(secret), err == nil
}

func isHex(s string, bytes int) bool {
	return len(s) == 2*bytes && !strings.ContainsFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}
