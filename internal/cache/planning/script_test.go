package planning

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs plans through scripts; planScript.do lists the commands.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/scripts/*.txt", func(*testing.T) script.Interpreter { return new(planScript).do })
}

type planScript struct {
	now  time.Duration
	sets []Set
}

// self is the Manager that plans; owners are told apart by their first letter.
var self = owner("self")

func owner(name string) (id state.Incarnation) {
	copy(id[:], name)
	return id
}

func key(page int) state.StateKey {
	h, err := state.NewEngineHash([]byte{byte(page + 1)})
	if err != nil {
		panic(err)
	}
	return state.StateKey{Namespace: state.NamespaceID{1}, Hash: h}
}

// do runs one command; pages have 64 tokens, and the span starts at 128:
//
//	pages N                               N sets without evidence
//	at D                                  the present time
//	add PAGE OWNER MEDIUM [version=1] [format=raw] [page=OTHER] [tokens=FROM:TO]
//	refresh PAGE OWNER:MEDIUM…            a directory's answer
//	reject PAGE OWNER · lost PAGE MEDIUM
//	show PAGE
//	choose [need=1] [routes=memory+disk+peer+peerdisk] [age=D] [format=raw] [target=host]
func (s *planScript) do(c *script.Command) bool {
	switch c.Name {
	case "pages":
		s.sets = nil
		for i := range c.ParseInt(c.Word()) {
			s.sets = append(s.sets, NewSet(key(int(i)), self))
		}
	case "at":
		s.now = c.ParseDuration(c.Word())
	case "add":
		page := int(c.ParseInt(c.Word()))
		if why := s.sets[page].Add(s.replica(c, page, c.Word(), c.Word())); why != Chosen {
			c.Print("left out:", why.String())
		}
	case "refresh":
		page := int(c.ParseInt(c.Word()))
		var peers []state.Replica
		for _, w := range c.Words() {
			name, medium, _ := strings.Cut(w, ":")
			peers = append(peers, s.replica(c, page, name, medium))
		}
		s.sets[page].Refresh(peers)
	case "reject":
		s.sets[c.ParseInt(c.Word())].Reject(owner(c.Word()))
	case "lost":
		s.sets[c.ParseInt(c.Word())].Lost(medium(c, c.Word()))
	case "show":
		for _, r := range s.sets[c.ParseInt(c.Word())].Replicas() {
			c.Print(text(r))
		}
	case "choose":
		s.choose(c)
	default:
		return false
	}
	return true
}

func (s *planScript) replica(c *script.Command, page int, name, in string) state.Replica {
	r := state.Replica{
		Key:      key(int(c.Int("page", int64(page)))),
		Endpoint: state.Endpoint{Owner: owner(name), Medium: medium(c, in)},
		Version:  uint64(c.Int("version", 1)),
		Coverage: state.Span{Start: 128 + 64*uint64(page), End: 192 + 64*uint64(page)},
		Format:   c.Arg("format", state.FormatRaw),
		Seen:     s.now,
	}
	if from, to, ok := strings.Cut(c.Arg("tokens", ""), ":"); ok {
		r.Coverage = state.Span{Start: uint64(c.ParseInt(from)), End: uint64(c.ParseInt(to))}
	}
	return r
}

func medium(c *script.Command, word string) state.Medium {
	for m := range state.Medium(4) {
		if m.String() == word {
			return m
		}
	}
	if word != "tape" {
		c.Fatalf("there is no medium %s", word)
	}
	return 9
}

func (s *planScript) choose(c *script.Command) {
	q := Question{
		Span: state.Span{Start: 128, End: 128 + 64*uint64(len(s.sets))}, PageTokens: 64, Format: c.Arg("format", state.FormatRaw),
		Required: int(c.Int("need", 1)), Routes: Built(), Now: s.now, MaxAge: c.Duration("age", 0),
	}
	if c.Arg("target", "") == "host" {
		q.Target = HostReady
	}
	if words := c.Arg("routes", ""); words != "" {
		q.Routes = 0
		for w := range strings.SplitSeq(words, "+") {
			q.Routes |= Only(map[string]Route{"memory": FromMemory, "disk": FromDisk, "peer": FromPeer, "peerdisk": FromPeerDisk}[w])
		}
	}
	p := Choose(q, s.sets)
	if p.Target != q.Target {
		c.Fatalf("the plan has another target")
	}
	for i, st := range p.Steps {
		c.Print(fmt.Sprintf("page %d: %s by route %d", i, text(st.Replica), st.Route))
	}
	if len(p.Steps) == 0 {
		c.Print(fmt.Sprintf("nothing; %d of %d", p.Found, q.Required))
	}
	for _, r := range p.Refused {
		what := "no replica"
		if r.Replica.Version != 0 {
			what = text(r.Replica)
		}
		c.Print(fmt.Sprintf("page %d stops it: %s: %v", r.Page, what, r.Reason))
	}
}

func text(r state.Replica) string {
	return fmt.Sprintf("%s %v version %d", strings.TrimRight(string(r.Endpoint.Owner[:]), "\x00"), r.Endpoint.Medium, r.Version)
}
