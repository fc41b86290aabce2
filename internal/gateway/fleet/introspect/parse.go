package introspect

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// serverInfo is SGLang's answer to GET /server_info, as far as we read it. The zero value is an engine without one.
type serverInfo struct {
	sglang        bool   // the answer was SGLang's
	model         string // served_model_name, or model_path
	mode          string // disaggregation_mode; "" where it is missing or null
	bootstrapPort load.Count
	ranks         load.Count
	maxContext    load.Count
	pageSize      load.Count
	bigram        bool
	version       string
}

// bigrams are the speculative algorithms under which SGLang names pages by pairs of tokens, in any case of letters.
var bigrams = []string{"EAGLE", "EAGLE3", "FROZEN_KV_MTP"}

// parseServerInfo reads the answer. vLLM has, in its development mode, another object under that path: without a model in
// it, it is not SGLang's, and no fault.
func parseServerInfo(body []byte) (serverInfo, error) {
	o, err := parseObject("server_info", body)
	if err != nil {
		return serverInfo{}, err
	}
	info := serverInfo{model: o.text("served_model_name")}
	if info.model == "" {
		info.model = o.text("model_path")
	}
	if info.model == "" {
		return serverInfo{}, o.err
	}
	info.sglang = true
	info.mode = o.text("disaggregation_mode")
	info.ranks = o.count("dp_size", 1)
	info.maxContext = o.count("context_length", 1)
	info.version = o.text("version")
	info.pageSize = o.count("page_size", 1)
	info.bigram = slices.Contains(bigrams, strings.ToUpper(o.text("speculative_algorithm")))
	if info.mode != "null" && info.mode != "decode" { // these have one too, and no use for it
		port := o.count("disaggregation_bootstrap_port", 0)
		if n, ok := port.Get(); ok && n > 0 && n <= 65535 {
			info.bootstrapPort = port
		}
	}
	if o.err != nil {
		return serverInfo{}, o.err
	}
	return info, nil
}

// modelList is an engine's answer to GET /v1/models, as far as we read it.
type modelList struct {
	ids        []string // in the engine's order, each once; adapters are models too
	adapters   []string // those of ids with a parent
	owner      string   // the first owned_by that names a family we know
	maxContext load.Count
}

// maxModels bounds the models of one engine. The largest public adapter fleets hold some hundreds on an engine; each is
// compared with each, so a list that fills the whole body would cost seconds.
const maxModels = 4096

// parseModels reads the answer. An entry without an id is a fault: what it stands for cannot be asked for.
func parseModels(body []byte) (modelList, error) {
	o, err := parseObject("models", body)
	if err != nil {
		return modelList{}, err
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(o.fields["data"], &entries); err != nil || entries == nil {
		return modelList{}, ask.Malformed("models: data: want a list")
	}
	if len(entries) > maxModels {
		return modelList{}, ask.Malformed("models: data: %d entries, at most %d expected", len(entries), maxModels)
	}
	var list modelList
	for i, e := range entries {
		m, err := parseObject("models: data["+strconv.Itoa(i)+"]", e)
		if err != nil {
			return modelList{}, err
		}
		id, owner, context, parent := m.text("id"), m.text("owned_by"), m.count("max_model_len", 1), m.fields["parent"]
		if m.err == nil && id == "" {
			m.fault("id", "a name")
		}
		if m.err != nil {
			return modelList{}, m.err
		}
		if !slices.Contains(list.ids, id) {
			list.ids = append(list.ids, id)
			if len(parent) > 0 && string(parent) != "null" { // whatever it is: a base model has none
				list.adapters = append(list.adapters, id)
			}
		}
		if list.owner == "" && (owner == "vllm" || owner == "sglang") {
			list.owner = owner
		}
		list.maxContext = smaller(list.maxContext, context)
	}
	return list, nil
}

// smaller is the smaller of two limits; one that is not known, as an adapter's, does not limit.
func smaller(a, b load.Count) load.Count {
	x, ok1 := a.Get()
	y, ok2 := b.Get()
	if !ok1 || (ok2 && y < x) {
		return b
	}
	return a
}

// parseVersion reads vLLM's answer to GET /version. It is for people: what cannot be read is left out.
func parseVersion(body []byte) string {
	o, err := parseObject("version", body)
	if err != nil {
		return ""
	}
	return o.text("version")
}

// kind tells the engine's family. Its own /server_info goes before owned_by, which a proxy or a wrapper may rewrite.
func kind(info serverInfo, list modelList) fleet.Kind {
	switch {
	case info.sglang || list.owner == "sglang":
		return fleet.SGLang
	case list.owner == "vllm":
		return fleet.VLLM
	}
	return fleet.UnknownKind
}

// assemble puts together what the engine said. The error, if any, is [ErrUnroutable] and comes with a Spec without models.
func assemble(t Target, info serverInfo, list modelList, version string) (fleet.Spec, error) {
	s := t.Unknown()
	s.Kind = kind(info, list)
	s.Models, s.Adapters = list.ids, list.adapters
	if info.model != "" && !slices.Contains(s.Models, info.model) {
		s.Models = slices.Insert(s.Models, 0, info.model)
	}
	switch info.mode {
	case "null":
		s.Stage = fleet.Plain
	case "prefill":
		s.Stage = fleet.Prefill
	case "decode":
		s.Stage = fleet.Decode
	}
	if n, ok := info.ranks.Get(); ok && n <= load.MaxRanks {
		s.Ranks = int(n)
	}
	s.MaxContext = smaller(info.maxContext, list.maxContext)
	s.BootstrapPort, s.PageSize, s.Bigram = info.bootstrapPort, info.pageSize, info.bigram
	if s.Version = version; info.version != "" {
		s.Version = info.version
	}
	switch {
	case s.Kind == fleet.SGLang && s.Stage == fleet.Prefill && !s.BootstrapPort.IsKnown():
		s.Models = nil
		return s, fmt.Errorf("%w: a prefill engine without disaggregation_bootstrap_port: no decode engine could find it", ErrUnroutable)
	case len(s.Models) == 0:
		return s, fmt.Errorf("%w: it serves no model", ErrUnroutable)
	}
	return s, nil
}

// object is a JSON object whose fields are read one by one; the first fault is kept.
type object struct {
	where  string
	fields map[string]json.RawMessage
	err    error
}

func parseObject(where string, body []byte) (*object, error) {
	o := &object{where: where}
	if err := json.Unmarshal(body, &o.fields); err != nil || o.fields == nil {
		return nil, ask.Malformed("%s: want a JSON object", where)
	}
	return o, nil
}

func (o *object) fault(field, want string) {
	if o.err == nil {
		o.err = ask.Malformed("%s: %s: want %s", o.where, field, want)
	}
}

// text reads a string; "" where it is missing or null.
func (o *object) text(field string) string {
	var s *string
	if raw, ok := o.fields[field]; ok && json.Unmarshal(raw, &s) != nil {
		o.fault(field, "a string")
	}
	if s == nil {
		return ""
	}
	return *s
}

// count reads a whole number that is at least least; unknown where it is missing or null.
func (o *object) count(field string, least int64) load.Count {
	var n *int64
	if raw, ok := o.fields[field]; ok && (json.Unmarshal(raw, &n) != nil || (n != nil && *n < least)) {
		o.fault(field, "a whole number of at least "+strconv.FormatInt(least, 10))
		return load.Count{}
	}
	if n == nil {
		return load.Count{}
	}
	return load.Known(*n)
}
