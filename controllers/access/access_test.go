package access

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRolesAndVerbs: one line for each role, one column for each verb.
func TestRolesAndVerbs(t *testing.T) {
	columns := []Verb{Read, Create, Put, Patch, Delete, Batch, Retry, Pause, Resume, PatchStatus, ManageKinds, ManageTokens, ReadSecrets, ReadSelf, "unheard-of"}
	for role, allowed := range map[Role]string{
		Viewer:     "y............y.",
		Editor:     "yyyyyyyyy....y.",
		Controller: "y........y..yy.",
		Admin:      "yyyyyyyyyyyyyy.",
		"":         "...............",
		"root":     "...............",
	} {
		for i, verb := range columns {
			want := allowed[i] == 'y'
			require.Equal(t, want, Grant{Role: role}.Allows(verb, "widgets"), "%s %s", role, verb)
			limited := Grant{Role: role, Kinds: []string{"widgets", "jobs"}}
			require.Equal(t, want, limited.Allows(verb, "jobs"), "%s %s", role, verb)
			for _, kind := range []string{"widget", "widgetss", "Widgets", "widgets,jobs", ""} {
				require.Equal(t, want && (verb == Batch || verb == ReadSelf), limited.Allows(verb, kind), "%s %s %s", role, verb, kind)
			}
		}
	}
	require.True(t, Grant{Role: Admin}.Allows(ManageTokens, ""))
}

func TestRefusalsNameRoleVerbAndKind(t *testing.T) {
	limited := Grant{Role: Editor, Kinds: []string{"jobs", "toys"}}
	require.Equal(t, "role viewer may not delete widgets", Grant{Role: Viewer}.Refusal(Delete, "widgets"))
	require.Equal(t, "role editor may delete only jobs, toys here, not widgets", limited.Refusal(Delete, "widgets"))
	require.Equal(t, "role editor may not patch-status jobs", limited.Refusal(PatchStatus, "jobs"))
	require.Equal(t, "role viewer may not manage-tokens", Grant{Role: Viewer}.Refusal(ManageTokens, ""))
	require.Equal(t, "role admin may manage-tokens only jobs here, not what belongs to no kind",
		Grant{Role: Admin, Kinds: []string{"jobs"}}.Refusal(ManageTokens, ""))
	require.NotContains(t, limited.Refusal(Delete, "<script>"), "script")
}

func TestParseGrant(t *testing.T) {
	for text, want := range map[string]Grant{
		"viewer":            {Role: Viewer},
		"controller:a":      {Role: Controller, Kinds: []string{"a"}},
		"editor:a,b-c":      {Role: Editor, Kinds: []string{"a", "b-c"}},
		"admin:widgets,x-1": {Role: Admin, Kinds: []string{"widgets", "x-1"}},
	} {
		g, err := ParseGrant(text)
		require.NoError(t, err, text)
		require.Equal(t, want, g)
	}
	for text, want := range map[string]string{
		"": `role ""`, "root": `role "root"`, "Admin": `role "Admin"`, "admin ": `role "admin "`, "viewer:": `kind ""`, "viewer:a,": `kind ""`,
		"viewer:A": `kind "A"`, "viewer:a:b": `kind "a:b"`,
	} {
		_, err := ParseGrant(text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestTokens(t *testing.T) {
	id, text, hash := NewToken()
	require.Regexp(t, `^ek_[0-9a-f]{16}_[0-9a-f]{64}$`, text)
	gotID, gotHash, ok := ParseToken(text)
	require.True(t, ok)
	require.Equal(t, id, gotID)
	require.Equal(t, hash, gotHash)
	other, otherText, otherHash := NewToken()
	require.NotEqual(t, id, other)
	require.NotEqual(t, text, otherText)
	require.NotEqual(t, hash, otherHash)
	require.Len(t, hash, sha256.Size)

	secret := text[len("ek_")+len(id)+1:]
	for _, wrong := range []string{
		"", "ek", "__", "ek__", "ek_" + id, "ek_" + id + "_", "ek_" + id + "_" + secret[1:], text + "0", text + "_", "xx" + text[2:], " " + text, text + "\n",
		strings.ToUpper(text), "ek_" + strings.ToUpper(id) + "x_" + secret, "ek_" + id[1:] + "_" + secret, "ek_" + id + "_" + strings.Repeat("g", 64),
		"ek_" + id + "_" + strings.Repeat("é", 32), "ek_" + strings.Repeat("é", 8) + "_" + secret,
	} {
		gotID, gotHash, ok := ParseToken(wrong)
		require.False(t, ok, "%q", wrong)
		require.Empty(t, gotID)
		require.Zero(t, gotHash)
	}
}
