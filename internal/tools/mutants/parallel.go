package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// each calls f for all items, up to n at once, until one fails or ctx ends, and returns the first error.
func each[T any](ctx context.Context, n int, items []T, f func(T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan T)
	var workers sync.WaitGroup
	for range min(n, len(items)) {
		workers.Go(func() {
			for item := range queue {
				if err := f(item); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, item := range items {
		if ctx.Err() != nil {
			break
		}
		select {
		case queue <- item:
		case <-ctx.Done():
		}
	}
	close(queue)
	workers.Wait()
	return context.Cause(ctx)
}

// bar says now and then how far something is. It is for one goroutine at a time.
type bar struct {
	out         io.Writer
	what        string
	done, total int
	began, said time.Time
}

// often is how often a bar says something.
const often = 15 * time.Second

func newBar(out io.Writer, what string, total int) *bar {
	now := time.Now()
	fmt.Fprintf(out, "%s: 0 of %d\n", what, total)
	return &bar{out: out, what: what, total: total, began: now, said: now}
}

// step counts one more.
func (b *bar) step(more string) {
	b.done++
	if time.Since(b.said) < often && b.done < b.total {
		return
	}
	b.said = time.Now()
	if more != "" {
		more = ", " + more
	}
	left := time.Since(b.began) / time.Duration(b.done) * time.Duration(b.total-b.done)
	fmt.Fprintf(b.out, "%s: %d of %d%s, %s left\n", b.what, b.done, b.total, more, left.Round(time.Second))
}
