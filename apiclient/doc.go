// Package apiclient is the typed client of the Evenkeel API, the source of truth that controllers converge to.
//
// An [Object] is one declared thing: a spec (what is wanted), a status (what is), and the record that the SDK keeps of
// its reconciliation. A [Client] reads and writes the objects of one kind:
//
//	widgets, err := apiclient.New[WidgetSpec, WidgetStatus](apiclient.Config{URL: "http://127.0.0.1:8080"}, "widgets")
//	w, err := widgets.Create(ctx, "blue", WidgetSpec{Size: 3})
//	for w, err := range widgets.All(ctx) { … }
//	for event, err := range widgets.Watch(ctx) { … }
//	w, err = widgets.WaitFor(ctx, "blue", (*apiclient.Object[WidgetSpec, WidgetStatus]).Ready)
//
// Calls return errors to test with errors.Is: [ErrNotFound], [ErrExists], [ErrConflict], [ErrFenced], [ErrInvalid],
// [ErrUnauthorized], [ErrForbidden], [ErrSealed], [ErrUnexpectedResponse], [ErrUnavailable]; errors.As to *[Problem] gives everything the server said.
//
// # Who asks
//
// An API that is not for its own machine alone asks for a bearer token or a client certificate. Tokens come from
// [Config].Token, which is asked at each request, so that they may change; certificates from the transport of [Config].HTTP:
//
//	apiclient.Config{URL: "https://api.example.com", Token: apiclient.TokenFile("/var/run/secrets/evenkeel/token")}
//
// A request without a valid one is refused with status 401 and problem type "unauthorized", one that its owner may not make
// with 403 and "forbidden", and one too many with 429, "rate-limited" and a Retry-After. A refusal is the same whether the
// object exists or not.
//
// # The wire
//
// Bodies are JSON; errors are RFC 9457 problems (application/problem+json). {kind} and {name} are DNS-1123 labels.
//
//	POST   /v1/objects/{kind}                {"name","labels","spec"}   201 object; 409 exists
//	GET    /v1/objects/{kind}                ?limit=&cursor=&labels=&state=&fields=&unsettled=&sort=   200 {"items":[…],"next":"cursor"}
//	GET    /v1/objects/{kind}/{name}                                    200 object; 404
//	PUT    /v1/objects/{kind}/{name}         {"labels","spec"}          200 replaced, 201 created; If-Match: "revision"
//	PATCH  /v1/objects/{kind}/{name}         {"labels","spec"}          200 changed; If-Match: "revision"; 404
//	DELETE /v1/objects/{kind}/{name}                                    204 gone; 202 object, while finalizers remain
//	PATCH  /v1/objects/{kind}/{name}/status  [StatusPatch]              200 object, 204 gone; 409 fenced, 409 conflict, 404
//	POST   /v1/objects/{kind}/{name}/retry                              202 object with a new retryRequest
//	POST   /v1/objects/{kind}/{name}/pause, …/resume                    200 object
//	GET    /v1/objects/{kind}/{name}/events                             200 {"items":[Happening, …]}; 404
//	POST   /v1/batch                         {"items":[Item, …]}        200 {"items":[object or null, …]}
//	GET    /v1/watch/{kind}                  ?name=&labels=&cursor=     200 server-sent events; Last-Event-ID: cursor
//	PUT    /v1/kinds/{kind}                  {"schema","version","versions","conversion"}   200 replaced, 201 created; 409
//	POST   /v1/kinds/{kind}/upgrade          ?cursor=                   200 [Upgrade], with "next" while there may be more to upgrade
//	GET    /v1/kinds, /v1/kinds/{kind}                                  200; 404
//	DELETE /v1/kinds/{kind}                                             204; 409 while there are objects of it
//
// Who is let in may ask who that is, and under which prefix of NATS subjects controllers are notified:
//
//	GET    /v1/self                                                     200 [Self]
//
// Where there are tokens, admins manage them:
//
//	POST   /v1/tokens         {"name","role","kinds","expiresAt"}       201 token, with its text in "token", this once
//	GET    /v1/tokens         ?limit=&cursor=                           200 {"items":[…],"next":"cursor"}
//	DELETE /v1/tokens/{id}                                              204 revoked; 404
//
// Rules that every implementation keeps (they are what the conformance suite in apitest checks):
//
//   - revision grows with every write, and goes on growing when a name is used again after its object is gone; generation
//     grows when the spec changes, when deletion is asked for, and with nothing else. A PUT that changes nothing (specs
//     are compared as JSON, not as text), a pause of a paused object and a resume of one that is not paused write nothing.
//   - A change of generation, a retry request, a pause and a resume notify the kind's controllers. A status patch never
//     does, nor does a change of labels alone, nor what writes nothing.
//   - A PUT replaces spec and labels; labels that are absent are removed. With If-Match it is refused with "conflict" unless
//     the object is there and at that revision, and without it when the object is being deleted.
//   - A PATCH is a merge patch (RFC 7396) of labels and spec, with the effect of a PUT of what comes of it.
//   - The name of a label is 1 to 253 letters, digits and . _ / -; its value is up to 253 bytes without a comma.
//   - A POST under an Idempotency-Key, sent again within a day, answers with what the first one has made; the key with another
//     body is refused. Nothing is kept of a POST that was refused.
//   - A batch is applied as a whole or not at all. It has 1 to 500 items, each object once.
//   - A DELETE of an object with finalizers sets deletedAt and leaves it to their owners; asking again writes nothing.
//   - A status patch needs uid and fence. With nothing else it raises the fence, notifies nobody and makes no event. One with a fence lower than the highest one seen for the object is refused with
//     problem type "fenced"; one whose uid is not the object's (it was deleted and made anew), or whose revision is given
//     and not the object's, with "conflict".
//   - When a status patch removes the last finalizer of an object that is being deleted, the object is gone. None is added
//     to an object that is being deleted.
//   - reconciliation.state is Ready only while reconciliation.observedGeneration equals generation: a change of spec
//     turns it to Pending (or Deleting), and a patch that says Ready of an older generation is stored as Pending.
//   - Lists are in the order of names. limit is 1 to 500, by default 100; a page may hold fewer than that, and next is
//     absent on the last one.
//   - labels=a=b,c=d lists only objects that have all of these labels, state=Stalled only those in that state.
//   - fields=spec.region=eu,status.phase!=Running lists only objects whose fields are so: strings are compared as they are,
//     other values as JSON, and a field that is not there differs from every value.
//   - sort=created or changed (createdAt, changedAt) gives another order than that of names, and - before it the opposite one.
//   - A watch sends reset, a put for each object that is there in the order of names, synced, and then what happens: put with
//     the object as it is now, gone with kind and name, and a heartbeat every 15 s. The id of each event is a cursor; a
//     watch that gives one goes on behind it, or with reset if that is not known any more. Events may repeat, and what is
//     followed quickly by something else may be left out, but the last word on each object is told.
//   - events are what happened to an object, the latest first, also after it is gone: what notifies its controllers, and what
//     a status patch says of a reconcile that it has not said before, or in its "note" {"reason","message"}, whose reason is
//     TakenOver or Overdue. The last 100 are kept, for a week.
//   - reconciliation.runningSince is kept only while reconciliation.state is Reconciling or Deleting.
//   - unsettled=DURATION (Go syntax) lists only objects that have been owed a reconcile for at least that long: their
//     generation is not the observed one, their next attempt or retry request is overdue, their state is Reconciling or
//     (they were resumed) still Paused, or they are being deleted. Paused objects are never owed one. [Object.OwedSince] is
//     the same rule.
//   - spec and status are JSON objects; status is {} until a controller writes it. Elsewhere, unknown fields are refused.
//   - A 429 or 503 with Retry-After says that nothing was done, and how many seconds to wait.
//   - A wrong request is a problem of type "invalid" that names the field (status 400, 413 for a body over 8 MiB, 415 for
//     one that is not JSON, 422), and writes nothing. An unknown path (404) or method (405) is a problem without a type.
//
// # Versions
//
// A kind may have versions: a current one, which specs are stored in, and older ones that are still served, {"name","schema"},
// the oldest first. All requests about objects, lists and watches take ?version=, and the items of a batch "version": the
// version that their specs are in. Absent, it is the current one. Objects say in "version" which one their spec is in.
//
//   - A version that the kind does not have is refused with "invalid" (422), which names those that there are.
//   - What is written in an older version is checked, and its defaults are filled in, by the schema of that version, converted,
//     and then checked by the current one. What the older version cannot say stays as it was. A spec that is already there, as
//     that version shows it, writes nothing.
//   - fields= selects by the spec in the version that is asked for. Labels, status, state, revision and generation are the same
//     in all versions; status is not converted.
//   - Reads may ask for version=*, each object in the version that it is stored in. That needs no hook.
//   - A change of the current version rewrites nothing: objects are converted when they are read, and stored in the current
//     version when their spec is next written, or by an upgrade, which changes no revision and notifies nobody. What was stored
//     before the kind had versions is in the oldest one. A change that would leave objects behind in a version that is not there
//     any more is refused with "conflict" (409).
//   - Either all versions have secret fields (x-sensitive) or none has.
//
// Versions are converted by hooks, which come with the API's program or are asked over HTTP: the "conversion" of a kind is
// {"url","caBundle"}. The API posts to the url, which is https unless it is on its own machine,
//
//	{"kind","from","to","items":[{"spec","current"}, …]}   and wants, within 5 s,   200 {"items":[{"spec"}, …]}
//
// with as many items, in the same order. from and to are any two versions. current is the spec of the object as it stands now in
// version to, absent if there is none. A hook has to give the same answer to the same question, and sees secrets in plain.
//
// While a hook fails, what needs it is refused with a problem of type "conversion" (502, or 503 if it may be better another
// time) that names kind, object and versions, and has done nothing; but a write of something else than the spec has been done,
// and only its answer is missing. A watch is interrupted, and goes on where it was. Everything in the version that an object is
// stored in works without a hook.
package apiclient
