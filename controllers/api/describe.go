package api

import (
	"github.com/danielgtaylor/huma/v2"
)

// example is one request of each operation, for the description. Sent in this order to an empty store they all succeed, which
// a test checks.
type example struct {
	operation string
	// params are in the path, in the query or headers.
	params map[string]any
	body   any
}

type obj = map[string]any

// one is the object of most examples.
var one = obj{"kind": "widgets", "name": "blue", "version": "v2"}

var examples = []example{
	{"put-kind", obj{"kind": "widgets"}, obj{
		"version": "v2", "schema": obj{
			"type": "object", "required": []string{"size"}, "properties": obj{
				"size":   obj{"type": "integer", "minimum": 1},
				"region": obj{"type": "string", "default": "eu", "x-immutable": true},
			},
		},
		"versions": []obj{{"name": "v1", "schema": obj{
			"type": "object", "required": []string{"size"}, "properties": obj{"size": obj{"type": "string", "enum": []string{"small", "large"}}},
		}}},
		"conversion": obj{"url": "https://hooks.example.com/widgets"},
	}},
	{"upgrade-kind", obj{"kind": "widgets"}, nil},
	{"get-kind", obj{"kind": "widgets"}, nil},
	{"list-kinds", obj{"limit": "10"}, nil},
	{"create", obj{"kind": "widgets", "version": "v2", "Idempotency-Key": "8f14e45f"}, obj{"name": "blue", "labels": obj{"tier": "front"}, "spec": obj{"size": 3}}},
	{"get", one, nil},
	{"list", obj{"kind": "widgets", "labels": "tier=front", "state": "Pending", "fields": "spec.size=3", "sort": "-changed", "version": "v2", "limit": "10"}, nil},
	{"put", one, obj{"labels": obj{"tier": "front"}, "spec": obj{"size": 4}}},
	{"patch", one, obj{"spec": obj{"size": 5}}},
	{"pause", one, nil},
	{"resume", one, nil},
	{"retry", one, nil},
	{"patch-status", one, obj{"uid": "$uid", "fence": 1, "status": obj{"size": 5}, "reconciliation": obj{"state": "Ready", "observedGeneration": 3}}},
	{"batch", nil, obj{"items": []obj{
		{"kind": "widgets", "name": "red", "version": "v2", "spec": obj{"size": 1}}, {"kind": "widgets", "name": "green", "delete": true},
	}}},
	{"watch", obj{"kind": "widgets", "version": "v2", "labels": "tier=front"}, nil},
	{"list-events", one, nil},
	{"delete", one, nil},
	{"delete-kind", obj{"kind": "gadgets"}, nil},
	{"create-token", nil, obj{"name": "records", "role": "controller", "kinds": []string{"records"}, "expiresAt": "2100-01-01T00:00:00Z"}},
	{"list-tokens", obj{"limit": "10"}, nil},
	{"get-self", nil, nil},
	{"revoke-token", obj{"id": "$token"}, nil},
}

// otherAnswers are statuses of success besides the first, by operation.
var otherAnswers = map[string]struct{ status, description string }{
	"put":          {"201", "It was created."},
	"put-kind":     {"201", "It is the first one of the kind."},
	"delete":       {"204", "It is gone. The answer is 202 while finalizers remain."},
	"patch-status": {"204", "The last finalizer was removed, and the object is gone."},
}

// describe puts the examples and the other answers into the description.
func describe(api *huma.OpenAPI) {
	byID := map[string]example{}
	for _, e := range examples {
		byID[e.operation] = e
	}
	for _, path := range api.Paths {
		for _, o := range []*huma.Operation{path.Get, path.Post, path.Put, path.Patch, path.Delete} {
			if o != nil {
				byID[o.OperationID].describe(o)
			}
		}
	}
}

func (e example) describe(o *huma.Operation) {
	if also, ok := otherAnswers[o.OperationID]; ok {
		same := &huma.Response{Description: also.description}
		for status, r := range o.Responses {
			if status != "default" && also.status != "204" {
				same.Content = r.Content
			}
		}
		o.Responses[also.status] = same
	}
	for _, p := range o.Parameters {
		if value, ok := e.params[p.Name]; ok {
			p.Example = value
		}
	}
	if o.RequestBody == nil || e.body == nil {
		return
	}
	for _, media := range o.RequestBody.Content {
		media.Example = e.body
	}
}
