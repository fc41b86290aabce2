package body
import "testing"
func TestSmoke(t *testing.T) {
	b := []byte(`{"mod\u0065l":"m\u00e4","stream":true,"x":[1,{"a":[]}],"temperature":null,"rid":"q","stream_options":{"a":1}, "max_tokens":5,"messages":[{"a":1e400}]}`)
	f, err := Scan(b, Chat)
	if err != nil { t.Fatal(err) }
	c, err := ParseContract([]byte(`{"temperature":0.70,"top_k":5}`), Reject)
	if err != nil { t.Fatal(err) }
	p := NewPatch(b, &f)
	c.Inject(&p, c.Apply(b, &f))
	p.Remove(RID); p.Remove(Model); p.SetIncludeUsage()
	t.Log(string(p.AppendTo(nil)), string(f.Model), f.MaxTokens, f.HasMessages)
	n := testing.AllocsPerRun(100, func() { Scan(b, Chat) })
	t.Log(n)
}
