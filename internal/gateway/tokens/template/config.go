package template

import (
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/jinja"
)

// ParseConfig reads a Config from a model's files: tokenizer_config.json, and chat_template.jinja if the model has one (nil
// otherwise), whose text goes before the one in the former, as in Hugging Face. The chat_template of tokenizer_config.json is a
// text or a list of named texts, of which default and tool_use are taken. Errors are of ErrInput; a model without a
// template is one of them.
func ParseConfig(name string, tokenizerConfig, chatTemplate []byte) (Config, error) {
	cfg := Config{Name: name, Tokens: map[string]string{}, Source: string(chatTemplate)}
	if len(tokenizerConfig) > 0 {
		v, err := jinja.ParseJSON(tokenizerConfig)
		if err != nil {
			return Config{}, err
		}
		if !v.IsDict() {
			return Config{}, &Error{Class: ErrInput, Msg: "tokenizer_config.json is not an object"}
		}
		cfg.readTokens(v)
		if cfg.Source == "" {
			cfg.readTemplates(v)
		}
	}
	if cfg.Source == "" {
		return Config{}, &Error{Class: ErrInput, Msg: "no chat template for " + name}
	}
	return cfg, nil
}

func (cfg *Config) readTemplates(v jinja.Value) {
	templates, _ := v.Get("chat_template")
	if s, ok := templates.Text(); ok {
		cfg.Source = s
		return
	}
	for _, t := range templates.List() {
		name, _ := t.Get("name")
		text, _ := t.Get("template")
		s, _ := text.Text()
		switch {
		case name.Is("default"):
			cfg.Source = s
		case name.Is("tool_use"):
			cfg.ToolSource = s
		}
	}
}

// readTokens takes each *_token, which is a text or an object with the text as its content.
func (cfg *Config) readTokens(v jinja.Value) {
	token := func(v jinja.Value) (string, bool) {
		if content, ok := v.Get("content"); ok {
			v = content
		}
		return v.Text()
	}
	take := func(v jinja.Value) {
		for _, key := range v.Keys() {
			val, _ := v.Get(key)
			if s, ok := token(val); ok && strings.HasSuffix(key, "_token") {
				cfg.Tokens[key] = s
			}
		}
	}
	take(v)
	extra, _ := v.Get("extra_special_tokens")
	take(extra)
	more, _ := v.Get("additional_special_tokens")
	for _, t := range more.List() {
		if s, ok := token(t); ok {
			cfg.Extra = append(cfg.Extra, s)
		}
	}
}
