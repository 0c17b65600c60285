// Package evenkeel is the ten-minute tour of Evenkeel, a Go SDK for controllers that scale out; it contains no code.
//
// # What it is
//
// A controller makes the world match what users declare. With Evenkeel you write one function per kind of object; the
// SDK calls it whenever an object has to be looked at, on any number of replicas, for each object on one at a time, and
// does so again until it succeeds, whatever dies in between.
//
// # See it
//
//	git clone https://github.com/evenkeel-io/evenkeel && cd evenkeel
//	go run ./examples/hello
//
// starts a broker, the API and replicas of a controller, kills one, and says where to look next.
//
// # A controller
//
// examples/hello/controller.go is a small one, examples/records one as you would deploy it. The function receives the object, does the work, and writes what it found
// into the status:
//
//	func reconcile(ctx context.Context, w *apiclient.Object[Spec, Status]) (reconciler.Result, error)
//
// reconciler.Run connects it to NATS and to the Evenkeel API, and logs to stderr. Package reconciler says what to return and
// what is promised.
//
// # A test
//
// Package reconciler/reconcilertest runs functions against a real nats-server in virtual time: hours of backoff, dead
// replicas and cut links in milliseconds, without a network.
//
// # What happens to a change
//
// A client writes a spec (package apiclient). The API stores it and sends a notification, a name without a payload
// (package notify). A replica with a free worker pulls it, takes the object's lock (package lock), reads the object,
// calls the function, stores the status, and puts the object to sleep if it is to be looked at again (package requeue).
// reconciler/process.go reads like this, top to bottom. DESIGN.md says why.
//
// # How to stop
//
// Cancel the context of Run. It takes no new work, lets running functions finish, hands over the rest, and returns nil.
package evenkeel
