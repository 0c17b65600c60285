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

func controller(ctx context.Context, natsURL, apiURL string) error {
	nc, err := nats.Connect(natsURL, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	return reconciler.Run(ctx, reconciler.Config{NATS: nc, API: apiURL, Observer: show}, reconciler.For("widgets", reconcile))
}
