package wire

import "testing"

func TestSteadyStateAllocatesNothing(t *testing.T) {
	payloads := append(captured(t, "vllm_0.32.0.json"), captured(t, "sglang_0.5.23.json")...)
	payloads = append(payloads, fromJSON(t, `[0,[{"type":"BlockStored","block_hashes":[1],"token_ids":[1],"block_size":1,"lora_name":"l","extra_keys":[["l",["img",-3],"salt"]]},["BlockRemoved","x"]],0]`))
	var d Decoder
	all := func() {
		for _, p := range payloads {
			if d.Begin(p) != nil {
				t.Fatal("no batch")
			}
			for d.Next() != End {
			}
		}
	}
	all()
	if n := testing.AllocsPerRun(100, all); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
