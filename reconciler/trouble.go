package reconciler

import (
	"slices"
	"strings"
	"time"
)

// Trouble that goes on is logged again after repeatFirst, and then after twice as long each time, up to repeatMax.
const repeatFirst, repeatMax = 5 * time.Second, 30 * time.Second

// sameTrouble names a trouble for [repeat.Filter]. Words with digits do not count: the id of each session that could not be
// opened is another one.
func sameTrouble(kind, what string) string {
	words := slices.DeleteFunc(strings.Fields(what), func(word string) bool { return strings.ContainsAny(word, "0123456789") })
	return kind + " " + strings.Join(words, " ")
}
