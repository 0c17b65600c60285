package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

type (
	batchInput struct {
		Body struct {
			Items []apiclient.Item `json:"items"`
		}
	}
	batchOutput struct {
		Body struct {
			Items batchItems `json:"items" doc:"The objects as they are afterwards, null for one that has gone."`
		}
	}
)

// batchItems are the objects of a batch, nil for one that has gone.
type batchItems []*apiclient.Raw

// Schema says that items may be null, which huma cannot see.
func (batchItems) Schema(r huma.Registry) *huma.Schema {
	object := r.Schema(reflect.TypeFor[apiclient.Raw](), true, "")
	return &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{OneOf: []*huma.Schema{object, {Type: "null"}}}}
}

func (a *API) registerBatch(r *router) {
	huma.Register(r.api, r.operation(access.Batch, "batch", "POST", "/v1/batch", 200, "Apply several objects in one transaction: all of them or none"), a.batch)
}

func (a *API) batch(ctx context.Context, in *batchInput) (*batchOutput, error) {
	batch, err := objects.ParseBatch(in.Body.Items)
	for i := range batch {
		if err != nil {
			break
		}
		verb := access.Put
		if batch[i].Delete {
			verb = access.Delete
		}
		if err = permit(ctx, verb, batch[i].Key); err != nil {
			err = batch[i].Failed(err)
		}
	}
	for i := range batch {
		if err == nil && !batch[i].Delete {
			if batch[i].Wanted.Admit, err = a.kinds.admit(ctx, batch[i].Key.Kind); err != nil {
				err = batch[i].Failed(err)
			}
		}
	}
	out := new(batchOutput)
	if err == nil {
		out.Body.Items, err = a.store.batch(ctx, batch)
	}
	if err != nil {
		return nil, a.failed(ctx, "apply a batch", err)
	}
	for i := range batch {
		a.wrote(batch[i].Key)
	}
	if err := a.showAll(ctx, out.Body.Items...); err != nil {
		return nil, a.failed(ctx, "apply a batch", err)
	}
	return out, nil
}

// batch applies all items or none, and returns the objects in the order of the request.
func (s *store) batch(ctx context.Context, batch []objects.Asked) (results []*apiclient.Raw, err error) {
	err = s.writing(ctx, func(tx *transaction) error {
		results = make([]*apiclient.Raw, len(batch))
		for i := range batch {
			o, err := tx.apply(ctx, &batch[i])
			if err != nil {
				return batch[i].Failed(err)
			}
			results[batch[i].At] = o
		}
		return nil
	})
	return results, err
}

// apply applies one item. It returns nil if no object is left.
func (tx *transaction) apply(ctx context.Context, a *objects.Asked) (*apiclient.Raw, error) {
	o, e, err := tx.change(ctx, a.Key, a.Rule())
	if err == nil && e.Gone {
		return nil, nil //nolint:nilnil // there is none, and that is right
	}
	if !errors.Is(err, apiclient.ErrNotFound) {
		return &o, err
	}
	create, err := a.Absent()
	if !create || err != nil {
		return nil, err
	}
	o, inserted, err := tx.create(ctx, a.Key, a.Wanted)
	if err == nil && !inserted {
		err = errLostRace
	}
	return &o, err
}

// requestKey is the key under which a client makes a request, and what tells the request from others.
type requestKey struct {
	key  string
	body []byte
}

// bodyOf tells one create from another.
func bodyOf(k objects.Key, w objects.Wanted) []byte {
	text, _ := json.Marshal([]any{k, w.Labels, w.Spec}) // what has been decoded encodes
	return text
}

const (
	selectRequest = `SELECT kind, name, uid, body_hash, hash_key FROM requests WHERE request_key = $1`
	insertRequest = `INSERT INTO requests (request_key, kind, name, uid, body_hash, hash_key, made_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (request_key) DO NOTHING`
	deleteRequests = `DELETE FROM requests WHERE made_at < $1`
)

// remember notes what was made under a key. If nothing was, because there was an object already, it looks whether that is
// what an earlier request under the key has made.
func (tx *transaction) remember(ctx context.Context, under requestKey, o apiclient.Raw, inserted bool) (apiclient.Raw, bool, error) {
	k := objects.KeyOf(&o)
	if inserted {
		with := tx.vault.keys.First() // also where there are no secrets: there may be some tomorrow
		hash, err := tx.vault.digest(with, under.body)
		if err != nil {
			return o, false, fmt.Errorf("create %s: remember its key: %w", k, err)
		}
		result, err := tx.ExecContext(ctx, insertRequest, under.key, k.Kind, k.Name, o.UID, hash, with, objects.Now().UnixMicro())
		if err != nil {
			return o, false, fmt.Errorf("create %s: remember its key: %w", k, err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return o, true, err
		}
	}
	var made objects.Key
	var uid, hash, with string
	err := tx.QueryRowContext(ctx, selectRequest, under.key).Scan(&made.Kind, &made.Name, &uid, &hash, &with)
	switch {
	case isNoRows(err):
		return o, false, nil // somebody else made the object
	case err != nil:
		return o, false, fmt.Errorf("create %s: look for its key: %w", k, err)
	}
	switch now, err := tx.vault.digest(with, under.body); {
	case err != nil:
		return o, false, fmt.Errorf("%w: create %s: compare it with the request before under its Idempotency-Key: %w", errSealed, k, err)
	case hash != now:
		return o, false, objects.OtherRequest()
	case inserted: // and rolled back with this error: what the first request made has gone
		return o, false, objects.MadeAndGone(k)
	}
	r, err := find(ctx, tx, tx.vault, made, "")
	if err == nil && r.object.UID != uid {
		err = objects.MadeAndGone(k)
	}
	return r.object, true, err
}

// forgetRequests drops keys from before a time.
func (s *store) forgetRequests(ctx context.Context, before time.Time) error {
	_, err := s.write.ExecContext(ctx, deleteRequests, before.UnixMicro())
	return err
}
