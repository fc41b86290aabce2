// Package template turns a request's messages into the prompt that the engine makes of them: it renders a model's chat
// template as Hugging Face's apply_chat_template does, with the engine of the package jinja.
//
// It promises that a rendered prompt is byte for byte what jinja2 renders, and that what cannot be so is an error of a class
// that a caller branches on: a template that is not supported is refused by Compile, by name; a conversation that the
// template itself refuses is ErrRaised. A render is bounded in work and output by the size of its input, so that no
// conversation can hold or exhaust the process. A Template does not change and may be used by any number of callers at once.
// What to route on when there is no prompt, Prompt decides.
package template
