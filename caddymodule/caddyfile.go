package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("fairway", parseGlobal)
	httpcaddyfile.RegisterHandlerDirective("fairway", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("fairway", httpcaddyfile.Before, "reverse_proxy")
}

// parseGlobal reads the block in the global options.
func parseGlobal(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next()
	if existing != nil {
		return nil, d.Err("the global option fairway stands twice")
	}
	app := new(App)
	if err := app.UnmarshalCaddyfile(d.NewFromNextSegment()); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "fairway", Value: caddyconfig.JSON(app, nil)}, nil
}

// option is one word of a block: how to read its line, with the dispenser on the
// word, and whether it may stand more than once. With hush an error repeats nothing
// that stands in the block and is no option: it may be a secret in the wrong place.
type option struct {
	parse  func(d *caddyfile.Dispenser) error
	repeat bool
	hush   bool
}

// options are the words of a block.
type options map[string]option

// parse reads the lines of a block of what, at a nesting. later are words that are
// known but that this version does not have.
func (o options) parse(d *caddyfile.Dispenser, what string, nesting int, later ...string) error {
	seen := map[string]bool{}
	for d.NextBlock(nesting) {
		word := d.Val()
		opt, known := o[word]
		switch {
		case slices.Contains(later, word):
			return d.WrapErr(errLater(what+" option '"+word+"'", ""))
		case !known && o.hushed():
			return d.Errf("unrecognized %s option: want %s", what, o.words())
		case !known:
			return d.Errf("unrecognized %s option '%s': want %s", what, word, o.words())
		case seen[word] && !opt.repeat:
			return d.Errf("%s option '%s' stands twice", what, word)
		}
		seen[word] = true
		if err := opt.parse(d); err != nil {
			return err
		}
		if d.NextBlock(d.Nesting()) {
			return d.Errf("%s option '%s' takes no block", what, word)
		}
	}
	return nil
}

func (o options) words() string {
	return strings.Join(slices.Sorted(maps.Keys(o)), ", ")
}

func (o options) hushed() bool {
	for _, opt := range o {
		if opt.hush {
			return true
		}
	}
	return false
}

// text reads an option's one argument into v. check judges it, unless a placeholder
// keeps its value open until the config is loaded, when it is checked again.
func text(v *string, check func(string) error) option {
	return option{parse: func(d *caddyfile.Dispenser) error {
		word, args := d.Val(), d.RemainingArgs()
		if len(args) != 1 {
			return d.Errf("'%s' takes one value, not %d", word, len(args))
		}
		*v = args[0]
		return checked(d, word, args[0], check)
	}}
}

// texts appends an option's arguments to v, one or more a line, the option as often as one likes.
func texts(v *[]string, check func(string) error) option {
	return option{repeat: true, parse: func(d *caddyfile.Dispenser) error {
		word, args := d.Val(), d.RemainingArgs()
		if len(args) == 0 {
			return d.Errf("'%s' takes one value or more", word)
		}
		for _, a := range args {
			if slices.Contains(*v, a) {
				return d.Errf("'%s': '%s' stands twice", word, a)
			}
			if err := checked(d, word, a, check); err != nil {
				return err
			}
			*v = append(*v, a)
		}
		return nil
	}}
}

// pairs reads NAME=VALUE arguments into v, one or more a line.
func pairs(v *map[string]string) func(d *caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		word, args := d.Val(), d.RemainingArgs()
		if len(args) == 0 {
			return d.Errf("'%s' takes one NAME=VALUE or more", word)
		}
		if *v == nil {
			*v = map[string]string{}
		}
		for _, a := range args {
			name, value, ok := strings.Cut(a, "=")
			if _, twice := (*v)[name]; !ok || name == "" || value == "" || twice {
				return d.Errf("%s: '%s': want NAME=VALUE, each name once", word, a)
			}
			if err := checkLabelName(name); err != nil {
				return d.WrapErr(fmt.Errorf("%s: %w", word, err))
			}
			(*v)[name] = value
		}
		return nil
	}
}

// checked judges a value that is known when the Caddyfile is read.
func checked(d *caddyfile.Dispenser, word, value string, check func(string) error) error {
	if value == "" {
		return d.Errf("'%s' is empty", word)
	}
	if check == nil || hasPlaceholder(value) {
		return nil
	}
	if err := check(value); err != nil {
		return d.WrapErr(fmt.Errorf("%s: %w", word, err))
	}
	return nil
}
