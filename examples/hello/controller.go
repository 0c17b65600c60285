package main

import (
	"context"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/nats-io/nats.go"
)

type widget struct{ Size int }

func reconcile(ctx context.Context, w *apiclient.Object[widget, widget]) (reconciler.Result, error) {
	<-time.After(time.Duration(w.Spec.Size) * 100 * time.Millisecond) // stands for the real work
	w.Status.Size = w.Spec.Size
	return reconciler.Result{}, nil
}

func controller(ctx context.Context, name, natsURL, apiURL string) error {
	nc, err := nats.Connect(natsURL, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	cfg := reconciler.Config{Name: name, NATS: nc, API: apiURL, Observer: show}
	return reconciler.Run(ctx, cfg, reconciler.For("widgets", reconcile))
}
