package introspect

import (
	"os"
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

func seeds(f *testing.F, files []string, texts ...string) {
	for _, name := range files {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range texts {
		f.Add([]byte(s))
	}
}

func FuzzParseServerInfo(f *testing.F) {
	seeds(f, []string{"sglang_0.5.23_server_info_kept_keys.json"},
		`{"served_model_name":"m","model_path":"p","disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":2,"version":"0.5.23","context_length":4096}`,
		`{"served_model_name":null,"model_path":7}`, `{"vllm_config":{}}`, `[]`, `{"served_model_name":"m","dp_size":1e400}`)
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := parseServerInfo(b)
		if err != nil {
			if info != (serverInfo{}) {
				t.Errorf("%v, and yet %+v", err, info)
			}
			return
		}
		s, err := assemble(Target{ID: "e"}, info, modelList{}, "")
		if s.Ranks < 0 || (err == nil) != (len(s.Models) > 0) || slices.Contains(s.Models, "") {
			t.Errorf("%+v, %v", s, err)
		}
		if p, ok := s.BootstrapPort.Get(); (ok && (p < 1 || p > 65535)) || (!ok && s.Kind == fleet.SGLang && s.Stage == fleet.Prefill && len(s.Models) > 0) {
			t.Errorf("port %v: %+v", s.BootstrapPort, s)
		}
	})
}

func FuzzParseModels(f *testing.F) {
	seeds(f, []string{"sglang_0.5.23_models.json"},
		`{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096,"parent":null},{"id":"a","parent":"m","max_model_len":null}]}`,
		`{"data":[{"id":""}]}`, `{"data":[null]}`, `{"data":{}}`, `{"data":[{"id":"m","max_model_len":9223372036854775808}]}`)
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseModels(b)
		if err != nil {
			if list.ids != nil || list.owner != "" || list.maxContext.IsKnown() {
				t.Errorf("%v, and yet %+v", err, list)
			}
			return
		}
		sorted := slices.Sorted(slices.Values(list.ids))
		if slices.Contains(sorted, "") || len(slices.Compact(sorted)) != len(list.ids) {
			t.Errorf("%q", list.ids)
		}
		if n, ok := list.maxContext.Get(); ok && n < 1 {
			t.Errorf("context %d", n)
		}
	})
}

func FuzzParseVersion(f *testing.F) {
	seeds(f, nil, `{"version":"0.32.0"}`, `{"version":7}`, `null`)
	f.Fuzz(func(t *testing.T, b []byte) { parseVersion(b) })
}
