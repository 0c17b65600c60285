// Package sample has something to break for every operator. Its tests notice all breaks but those of Slack and Unreached.
package sample

import (
	"errors"
	"sync"
	"time"
)

// ErrOdd is an error.
var ErrOdd = errors.New("odd")

// Log collects what functions do, in order.
type Log struct {
	mu    sync.Mutex
	lines []string
}

func (l *Log) add(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return len(line) == 1
}

// Half is half of an even number.
func Half(n int) (int, error) {
	if n%2 != 0 {
		return 0, ErrOdd
	}
	return n / 2, nil
}

// Quarter checks an error, and returns that of a call.
func Quarter(n int) (int, error) {
	half, err := Half(n)
	if err != nil {
		return half - 1, errors.Join(errors.New("quarter"), err)
	}
	return Half(half)
}

// Both calls two functions, the second only if the first is true.
func Both(l *Log, a, b string) bool { return l.add(a) && l.add(b) }

// Size sorts numbers into sizes.
func Size(n int) string {
	switch {
	case n < 10:
		return "small"
	case n <= 50, n == 60:
		return "medium"
	}
	return "large"
}

// Defers runs things at its end, in the opposite order.
func (l *Log) Defers() {
	defer l.add("first")
	defer l.add("second")
	l.add("third")
	l.add("fourth")
}

// Sum adds the numbers up to the first 0, without negative ones.
func Sum(numbers ...int) (sum int) {
	for _, n := range numbers {
		if n < 0 {
			continue
		}
		if n == 0 {
			break
		}
		sum += n
	}
	return sum
}

// Wait is how long to wait.
func Wait(long bool) time.Duration {
	if long {
		return 1000 * time.Millisecond
	}
	return time.Duration(500) * time.Microsecond
}

// Ready reports which channel is.
func Ready(a, b chan int) string {
	select {
	case <-a:
		return "a"
	case b <- 1:
		return "b"
	default:
	}
	return ""
}

// On calls f with true.
func On(f func(bool)) { f(true) }

// Status is a number of some size.
func Status() int { return 404 }

// Slack has a branch that changes nothing.
func Slack(s []int) []int {
	if len(s) == 0 {
		s = nil
	}
	return append([]int(nil), s...)
}

// Unreached is called by no test.
func Unreached() bool { return false }
