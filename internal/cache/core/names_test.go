package core

import (
	"fmt"
	"testing"
)

// TestNames: namespaces and tenants come and go without end, as long as few of them are in use at once; and what is in use is not forgotten.
func TestNames(t *testing.T) {
	c := New(Config{Epoch: 1, Limits: Limits{Names: 3}, Scopes: map[Scope]ScopeBudget{7: {Resident: 100}}}, nil)
	now := Time(0)
	said := func(ev Event) Action {
		now += Time(2e9) // names are looked for once a second
		out := c.Step(now, ev, nil)
		if wrong := c.Check(); wrong != "" {
			t.Fatal(wrong)
		}
		if len(out) == 0 {
			return nil
		}
		return out[len(out)-1]
	}
	engine := func(n int, ns, arena string, scope Scope) (SessionID, Action) {
		id := SessionID{1, uint32(n)}
		e := &Register{Session: id, Instance: fmt.Sprint(n), Namespace: Namespace(hashOf(ns)), Scope: scope, Layout: []Group{{PartBytes: []uint32{100}}},
			Arenas: []Arena{{uint32(arena[0]), 4, 100}}}
		return id, said(e)
	}
	block := func(id SessionID, op int, name string, scope Scope) {
		g := said(&Publish{Session: id, Op: uint64(op), Scope: scope, Blocks: []Block{{Hash: hashOf(name)}}})
		seal := &Sealed{Session: id, Slot: g.(Granted).Blocks[0].Slot}
		said(seal)
	}
	keeper, _ := engine(1, "kept", "k", 7)
	block(keeper, 1, "kept", 0)
	for n := 2; n < 100; n++ {
		id, a := engine(n, fmt.Sprint("space", n), "x", Scope(1000+n))
		if _, ok := a.(Registered); !ok {
			t.Fatalf("%d: %s", n, text(a))
		}
		block(id, 1, "block", Scope(2000+n))
		said(&Fenced{id})
	}
	if len(c.spaceList) > 3 || len(c.scopeList) > 4 {
		t.Errorf("%d namespaces and %d tenants are kept", len(c.spaceList), len(c.scopeList))
	}
	a := said(&Query{Session: keeper, Ticket: Ticket{1, 1}, Mode: Prefix, Consumers: 1, Demand: []Want{{0, []Hash{hashOf("kept")}}}})
	if r, ok := a.(Ready); !ok || r.Why != Found {
		t.Errorf("what was kept: %s", text(a))
	}
	if got := c.scopeList[c.scopes[7]].budget.Resident; got != 100 {
		t.Errorf("tenant 7 may have %d bytes", got)
	}
	// Three in use leave no room for a fourth.
	for n := 100; n < 102; n++ {
		if _, a := engine(n, fmt.Sprint("space", n), string(rune('A'+n)), 7); text(a) != text(Registered{SessionID{1, uint32(n)}}) && n == 100 {
			t.Fatalf("%d: %s", n, text(a))
		}
	}
	_, a = engine(102, "one more", "z", 7)
	if r, ok := a.(Refused); !ok || r.Class != TooMany {
		t.Errorf("one more: %s", text(a))
	}
}

// TestNamesOfOne: one client names no more than half of the tenants, and those with budgets of their own always have room.
func TestNamesOfOne(t *testing.T) {
	c := New(Config{Epoch: 1, Limits: Limits{Names: 6}, Scopes: map[Scope]ScopeBudget{7: {Resident: 400}}}, nil)
	now := Time(0)
	said := func(ev Event) Action {
		now += Time(2e9)
		out := c.Step(now, ev, nil)
		if wrong := c.Check(); wrong != "" {
			t.Fatal(wrong)
		}
		if len(out) == 0 {
			return nil
		}
		return out[0]
	}
	ops := map[uint32]uint64{}
	publish := func(session uint32, scope Scope) (slot SlotRef, ok bool) {
		ops[session]++
		a := said(&Publish{Session: SessionID{1, session}, Op: ops[session], Scope: scope, Blocks: []Block{{Hash: hashOf(fmt.Sprint(session, scope))}}})
		if r, refused := a.(Refused); refused {
			if r.Class != TooMany {
				t.Errorf("%s", text(a))
			}
			return slot, false
		}
		return a.(Granted).Blocks[0].Slot, true
	}
	register := func(n, arena uint32) {
		said(&Register{Session: SessionID{1, n}, Instance: fmt.Sprint(n), Layout: []Group{{PartBytes: []uint32{100}}}, Arenas: []Arena{{arena, 8, 100}}})
	}
	register(1, 1)
	register(2, 2)
	slots := map[Scope]SlotRef{}
	for _, scope := range []Scope{11, 12, 13, 7} {
		slot, ok := publish(1, scope)
		if !ok {
			t.Errorf("tenant %d of the first client is refused", scope)
		}
		slots[scope] = slot
	}
	if _, ok := publish(1, 14); ok {
		t.Error("the first client has more than half")
	}
	said(&Abandoned{SessionID{1, 1}, slots[11]})
	slot, ok := publish(1, 14)
	if !ok {
		t.Error("a tenant that is gone is still charged")
	}
	if _, ok := publish(2, 21); !ok {
		t.Error("the second client gets no tenant")
	}
	// Its successor, which finds its blocks in memory, is no other client.
	for _, slot := range []SlotRef{slots[12], slots[13], slot} {
		said(&Sealed{SessionID{1, 1}, slot, 5})
	}
	said(&Fenced{SessionID{1, 1}})
	register(3, 1)
	if _, ok := publish(3, 31); ok {
		t.Error("its successor has another half")
	}
}
