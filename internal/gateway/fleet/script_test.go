package fleet_test

import (
	"fmt"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs testdata/*.txt over a fleettest.World.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) script.Interpreter {
		w := &world{World: fleettest.New(), tickets: map[string]fleet.Ticket{}, kept: map[string]*fleet.Worker{}}
		return w.do
	})
}

type world struct {
	*fleettest.World
	tickets map[string]fleet.Ticket
	kept    map[string]*fleet.Worker // workers by a name of the script's, so that old ones can be spoken of
	view    *fleet.View
	set     fleet.Set
}

var outcomes = map[string]fleet.Outcome{
	"success": fleet.Success, "failure": fleet.Failure, "absent": fleet.Absent, "neutral": fleet.Neutral, "cancelled": fleet.Cancelled,
}

// do runs one command, of fleettest.World or of these:
//
//	claim ID TICKET · claim-anyway ID TICKET · missed ID · answers TICKET · done TICKET OUTCOME · breaker ID · returned ID
//	view                      hold the present view, and print it
//	keep ID NAME              remember the worker that the id has now
//	worker NAME               what is known of a kept worker
//	put ID …                  as engine, and say whether it is the same worker as before
//	fill stage= model= exclude=a,b    the live workers of the held view
//	has NAME · drop NAME
func (w *world) do(c *script.Command) bool {
	switch c.Name {
	case "claim":
		id, ticket := c.Word(), c.Word()
		t, ok := w.Reg.Claim(w.Workers[id], w.Now)
		if !ok {
			c.Print(ticket, "refused")
			break
		}
		w.tickets[ticket] = t
	case "claim-anyway":
		id, ticket := c.Word(), c.Word()
		w.tickets[ticket] = w.Reg.ClaimAnyway(w.Workers[id], w.Now)
	case "missed":
		w.Reg.Missed(c.Word())
	case "answers":
		t, claimed := w.tickets[c.Word()]
		if !claimed {
			c.Fatalf("no such ticket")
		}
		w.Reg.Answers(t)
	case "done":
		ticket, outcome := c.Word(), c.Word()
		o, known := outcomes[outcome]
		t, claimed := w.tickets[ticket]
		if !known || !claimed {
			c.Fatalf("no such ticket or outcome")
		}
		w.Reg.Done(t, o, w.Now)
		delete(w.tickets, ticket) // Done is called once
	case "breaker":
		x := w.Workers[c.Word()]
		s, streak := w.Reg.Breaker(x)
		c.Print(fmt.Sprintf("%s, %d in a row, admits %v", s, streak, w.Reg.Admits(x, w.Now)))
	case "returned":
		w.Reg.Returned(c.Word(), w.Now)
	case "view":
		w.view = w.Reg.View()
		var ids []string
		for x := range w.view.All() {
			ids = append(ids, x.String())
		}
		c.Print(append([]string{fmt.Sprintf("%d:", w.view.Len())}, ids...)...)
	case "keep":
		id := c.Word()
		w.kept[c.Word()] = w.Reg.View().Get(id)
	case "worker":
		x := w.kept[c.Word()]
		s, streak := w.Reg.Breaker(x)
		c.Print(fmt.Sprintf("%s %s %s %v: %d in flight, report %v, %s, %d in a row",
			x.ID, x.Stage, x.URL, x.Models, x.Load.Active(), x.Load.Report(w.Now) != nil, s, streak))
	case "put":
		c.Name = "engine"
		id := c.Words()[0]
		before := w.Workers[id]
		c.Rewind()
		w.Do(c)
		c.Print(fmt.Sprintf("same worker %v, same load record %v", w.Workers[id] == before, w.Workers[id].Load == before.Load))
	case "fill":
		w.fill(c)
	case "has":
		c.Print(fmt.Sprint(w.set.Has(w.kept[c.Word()])))
	case "drop":
		c.Print(fmt.Sprintf("%v, %d left", w.set.Remove(w.kept[c.Word()]), w.set.Len()))
	default:
		return w.Do(c)
	}
	return true
}

func (w *world) fill(c *script.Command) {
	stage, model := w.Stage(c), c.Arg("model", "m")
	m := w.view.Mask(func(x *fleet.Worker) bool { return x.Stage == stage && x.Serves(model) })
	w.set.Fill(m, w.Now, c.List("exclude"))
	ids := make([]string, 0, w.set.Len())
	for i := range w.set.Len() {
		ids = append(ids, w.set.At(i).ID)
	}
	floored := ""
	if w.set.Floored() {
		floored = ", breakers did not count"
	}
	c.Print(append([]string{fmt.Sprintf("%d of %d%s:", w.set.Len(), m.Len(), floored)}, ids...)...)
}
