package sample

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func equal[T comparable](t *testing.T, want, got T) {
	t.Helper()
	if want != got {
		t.Errorf("want %v, got %v", want, got)
	}
}

func TestQuarter(t *testing.T) {
	n, err := Quarter(8)
	equal(t, 2, n)
	equal(t, nil, err)
	n, err = Quarter(3)
	equal(t, -1, n)
	equal(t, true, errors.Is(err, ErrOdd) && err.Error() == "quarter\nodd")
	n, err = Quarter(2)
	equal(t, 0, n)
	equal(t, ErrOdd, err)
}

func TestBoth(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
		log  []string
	}{
		{"a", "b", true, []string{"a", "b"}},
		{"no", "b", false, []string{"no"}},
		{"a", "no", false, []string{"a", "no"}},
	} {
		l := &Log{}
		equal(t, tt.want, Both(l, tt.a, tt.b))
		equal(t, true, slices.Equal(tt.log, l.lines))
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int]string{
		9: "small", 10: "medium", 11: "medium", 50: "medium", 51: "large", 59: "large", 60: "medium", 61: "large",
	} {
		equal(t, want, Size(n))
	}
}

func TestDefers(t *testing.T) {
	l := &Log{}
	l.Defers()
	equal(t, true, slices.Equal([]string{"third", "fourth", "second", "first"}, l.lines))
}

func TestSum(t *testing.T) {
	equal(t, 6, Sum(1, -7, 5, 0, 9))
	equal(t, 1, Sum(-1, 1))
}

func TestWait(t *testing.T) {
	equal(t, time.Second, Wait(true))
	equal(t, 500*time.Microsecond, Wait(false))
}

func TestReady(t *testing.T) {
	full := make(chan int, 1)
	full <- 1
	equal(t, "a", Ready(full, nil))
	b := make(chan int, 1)
	equal(t, "b", Ready(nil, b))
	if len(b) != 1 {
		t.Fatal("nothing was sent")
	}
	equal(t, 1, <-b)
	equal(t, "", Ready(nil, nil))
}

func TestOn(t *testing.T) {
	calls := 0
	On(func(on bool) {
		calls++
		equal(t, true, on)
	})
	equal(t, 1, calls)
}

func TestStatus(t *testing.T) { equal(t, 404, Status()) }

func TestSlack(t *testing.T) {
	equal(t, 0, len(Slack(nil)))
	equal(t, 2, len(Slack([]int{1, 2})))
}
