package reconcilertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// transport is a replica's way to the API.
type transport struct{ r *Replica }

var errCut = errors.New("the link is cut")

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.r.api.pass(req.Context()); err != nil {
		return nil, err
	}
	var come func() (*http.Response, error)
	what := ""
	if req.Method != http.MethodGet {
		what = req.Method + " " + req.URL.Path
	}
	err := t.r.effect(what, func() (err error) {
		come, err = t.send(req)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp, err := come()
	if err == nil {
		err = t.r.api.pass(req.Context()) // the answer comes over the same link
	}
	if err != nil && resp != nil {
		err = errors.Join(err, resp.Body.Close())
		resp = nil
	}
	return resp, err
}

// send sends a request, and returns a function that waits for the answer. A request that is on its way arrives although
// its context ends.
func (t transport) send(req *http.Request) (answer func() (*http.Response, error), err error) {
	w, about, clock := t.r.w, req.Method+" "+req.URL.Path, t.r.w.clock(t.r.Name)
	if err := rewrite(&req.Body, &req.ContentLength, clock, clock.out); err != nil {
		return nil, err
	}
	there := w.fate(t.r.Name, about, false)
	serve := func(req *http.Request) (*http.Response, error) {
		resp, err := w.serve(t.r, req)
		if err == nil {
			err = rewrite(&resp.Body, &resp.ContentLength, clock, clock.in)
		}
		return resp, err
	}
	type result struct {
		resp *http.Response
		err  error
	}
	came := make(chan result, 1)
	arrive := func(req *http.Request) {
		resp, err := serve(req)
		back := w.fate(t.r.Name, about, true)
		if !back.lost {
			later(back.delay, func() { came <- result{resp, err} })
		}
	}
	switch {
	case there.lost:
	case there.delay == 0:
		arrive(req)
	default:
		again, err := repeatable(req)
		if err != nil {
			return nil, err
		}
		time.AfterFunc(there.delay, func() {
			if there.twice {
				_, _ = w.access(t.r.Name, again(w.living)) // whatever becomes of it, the second answer counts
			}
			arrive(again(w.living))
		})
	}
	return func() (*http.Response, error) {
		select {
		case c := <-came:
			return c.resp, c.err
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}, nil
}

// repeatable returns a function that makes the request anew, under a context of its own.
func repeatable(req *http.Request) (func(context.Context) *http.Request, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) *http.Request {
		again := req.Clone(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		return again
	}, nil
}

// rewrite translates the times in a body.
func rewrite(body *io.ReadCloser, length *int64, c clock, by func(time.Time) time.Time) error {
	if *body == nil || c.same() {
		return nil
	}
	text, err := io.ReadAll(*body)
	if err != nil {
		return err
	}
	text = translate(text, by)
	*body, *length = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return nil
}

// serve answers a request, with the faults that the test has ordered.
func (w *World) serve(r *Replica, req *http.Request) (*http.Response, error) {
	f := w.nextFault(r, req)
	if f == nil {
		return w.access(r.Name, req)
	}
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-req.Context().Done():
			return nil, req.Context().Err()
		case <-timer.C:
		}
	}
	if f.Lose {
		resp, err := w.access(r.Name, req)
		if err != nil {
			return nil, err
		}
		return nil, errors.Join(errLost, resp.Body.Close())
	}
	if f.Status != 0 {
		return &http.Response{StatusCode: f.Status, Status: http.StatusText(f.Status), Header: http.Header{}, Body: http.NoBody, Request: req}, nil
	}
	if f.Err != nil {
		return nil, f.Err
	}
	return w.access(r.Name, req)
}
