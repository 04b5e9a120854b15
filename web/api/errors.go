package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/deskcomm/deskcomm/web/problem"
)

var humaOnce sync.Once //nolint:gochecknoglobals // guards huma's own globals

// configureHuma sets what huma has as package variables: its form of errors,
// which would repeat rejected values, and how it reads names and lists.
func configureHuma() {
	humaOnce.Do(func() {
		huma.NewError = func(status int, _ string, errs ...error) huma.StatusError {
			return newProblem(context.Background(), status, errs)
		}
		huma.NewErrorWithContext = func(ctx huma.Context, status int, _ string, errs ...error) huma.StatusError {
			return newProblem(ctx.Context(), status, errs)
		}
		huma.ValidateStrictCasing = true
		huma.DefaultArrayNullable = false
	})
}

// newProblem makes a problem of what huma found. Huma's texts stay behind: they
// may hold parts of the request.
func newProblem(ctx context.Context, status int, errs []error) *problem.Problem {
	var p *problem.Problem
	switch status {
	case http.StatusBadRequest:
		p = problem.InvalidJSON("must be valid JSON")
	case http.StatusUnprocessableEntity:
		p = problem.Invalid(faults(errs)...)
	case http.StatusNotAcceptable:
		p = problem.New(status, problem.CodeNotAcceptable, "answers are JSON")
	default: // only failures of ours are left; see readBody for the others
		p = problem.Internal()
	}
	p.RequestID = problem.RequestID(ctx)
	return p
}

func faults(errs []error) []problem.Fault {
	list := make([]problem.Fault, 0, len(errs))
	for _, err := range errs {
		detail, ok := errors.AsType[*huma.ErrorDetail](err)
		if !ok {
			list = append(list, problem.InBody("", "has a value that is not valid"))
			continue
		}
		name, unknown := unknownProperty(detail)
		if unknown {
			detail.Location = strings.TrimSuffix(detail.Location, "."+name)
		}
		list = append(list, fault(detail, unknown))
		if unknown && strings.ContainsAny(name, ".[") {
			// Huma takes a name off its path by searching for a dot or a bracket,
			// so after such a name its paths hold parts of it.
			break
		}
	}
	return list
}

// unknownProperty returns the name of the property that the client made up, if
// that is the fault. Huma gives the object as the value and the name at the end
// of the location.
func unknownProperty(d *huma.ErrorDetail) (string, bool) {
	if d.Message != validation.MsgUnexpectedProperty {
		return "", false
	}
	object, _ := d.Value.(map[string]any)
	longest := ""
	for name := range object {
		if strings.HasSuffix(d.Location, "."+name) && len(name) >= len(longest) {
			longest = name
		}
	}
	return longest, true
}

// fault places what huma found and says which rule it is about.
func fault(d *huma.ErrorDetail, unknown bool) problem.Fault {
	place, rest, _ := strings.Cut(d.Location, ".")
	if place != "body" && !strings.HasPrefix(place, "body[") {
		return problem.InParameter(rest, rule(d.Message))
	}
	path := pathOf(rest)
	if unknown {
		return problem.InBody(problem.Pointer(path...), "has a property that is not allowed")
	}
	if name, ok := strings.CutPrefix(d.Message, "expected required property "); ok {
		name = strings.TrimSuffix(name, " to be present")
		return problem.InBody(problem.Pointer(append(path, name)...), "is required")
	}
	return problem.InBody(problem.Pointer(path...), rule(d.Message))
}

// pathOf reads huma's form of a path: events[3].event_type.
func pathOf(location string) []string {
	return strings.FieldsFunc(location, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// rule rewrites a message of huma. Those that end in something of the schema
// keep it; one that is not listed might hold a part of the request and is
// dropped.
func rule(message string) string {
	switch message {
	case validation.MsgExpectedString:
		return "must be a string"
	case validation.MsgExpectedArray:
		return "must be a list"
	case validation.MsgExpectedObject:
		return "must be a JSON object"
	case "invalid integer":
		return "must be an integer"
	}
	for _, known := range []struct{ prefix, rule string }{
		{"required ", "is required"},
		{"invalid date/time", "must be an RFC 3339 date-time"},
		{"expected string to be RFC 4122 uuid", "must be a UUID"},
		{"invalid value: ", "must be a UUID"}, // the one type of ours that is read from text
	} {
		if strings.HasPrefix(message, known.prefix) {
			return known.rule
		}
	}
	for _, known := range []struct{ prefix, before, after string }{
		{"expected value to be one of ", "must be one of ", ""},
		{"expected length >= ", "must have at least ", " characters"},
		{"expected length <= ", "must have at most ", " characters"},
		{"expected array length >= ", "must have at least ", " items"},
		{"expected array length <= ", "must have at most ", " items"},
		{"expected number >= ", "must be at least ", ""},
		{"expected number <= ", "must be at most ", ""},
		{"expected string to be a ", "must be a ", ""}, // the description of a pattern
	} {
		if rest, ok := strings.CutPrefix(message, known.prefix); ok {
			return known.before + rest + known.after
		}
	}
	return "is not valid"
}
