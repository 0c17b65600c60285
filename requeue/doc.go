// Package requeue looks at an object again later: [Backoff] says when, a [Queue] makes it happen.
//
// A sleeping object is a message schedule on the server (NATS ADR-51), one per object: it holds no worker, no slot of a
// consumer and no memory of any client, survives restarts of everything, and a newer one replaces it. When it comes due
// the server itself puts the object into the later lane of the work stream, up to a quarter of a second late.
//
// A fresh change cancels the pending requeue (notify.Publisher does it in the same write). A requeue that the server gets
// only after that, from a process that has lost the object's lock meanwhile, is stored if none is pending then: the object
// is looked at once too often. It never replaces one that is pending.
package requeue
