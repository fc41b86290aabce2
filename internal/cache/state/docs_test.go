package state

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedFields holds the table of the documents against the list of fields: names and order are what others implement.
func TestDocumentedFields(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/cache-identity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(raw), "## Namespace, version 1")
	if !ok {
		t.Fatal("the table is gone")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}
	var fields []string
	n := example()
	for _, f := range n.Fields() {
		name := regexp.MustCompile(`\[\d+\]`).ReplaceAllString(f.Name, "[]")
		if !slices.Contains(fields, name) && !strings.HasSuffix(name, "[]") {
			fields = append(fields, name)
		}
	}
	if !slices.Equal(documented, fields) {
		t.Errorf("docs/cache-identity.md has\n%v\nand the code\n%v", documented, fields)
	}
}

// vectors are what other programs test themselves with.
type vectors struct {
	Namespace, NamespaceID, InstanceID    string
	Salted, Adapter                       string // request ids of {salt "secret"} and {LoRA 01 00…, media 01 00…}
	EngineHash, SaltedBlock, Key, BareKey string // of the example's group 1, with the salted request
}

// TestVectors pins version 1 of everything in one file. A difference is a new version, not a new file.
func TestVectors(t *testing.T) {
	n := example()
	enc, err := n.Encode()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := n.ID()
	instance, err := InstanceID(ranks())
	if err != nil {
		t.Fatal(err)
	}
	salted, _ := (&Request{Salt: "secret"}).ID()
	adapter, _ := (&Request{LoRA: Digest{1}, Media: Digest{1}}).ID()
	h, _ := NewEngineHash([]byte("0123456789abcdef"))
	block := BlockName(h, salted)
	salt, bare := StateKey{id, 1, salted, h}, StateKey{id, 1, RequestID{}, h}
	got := vectors{
		hex.EncodeToString(enc), id.String(), instance.String(), hex.EncodeToString(salted[:]), hex.EncodeToString(adapter[:]),
		h.String(), hex.EncodeToString(block[:]), hex.EncodeToString(salt.AppendTo(nil)), hex.EncodeToString(bare.AppendTo(nil)),
	}
	raw, err := os.ReadFile("testdata/vectors.json")
	var want vectors
	if err != nil || json.Unmarshal(raw, &want) != nil || got != want {
		now, _ := json.MarshalIndent(got, "", "\t")
		t.Errorf("testdata/vectors.json is not what this version makes (%v):\n%s", err, now)
	}
}
