package webhook

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// asked is a gatherer that doubles numbers, one question at a time when it is let.
type asked struct {
	*gatherer[int, int]
	let chan error

	mu      sync.Mutex
	batches [][]int
}

func gatherInts(most int) *asked {
	a := &asked{let: make(chan error)}
	a.gatherer = newGatherer(most, func(ctx context.Context, questions []int) ([]int, error) {
		a.mu.Lock()
		a.batches = append(a.batches, slices.Sorted(slices.Values(questions)))
		a.mu.Unlock()
		answers := make([]int, len(questions))
		for i, q := range questions {
			answers[i] = 2 * q
		}
		select {
		case err := <-a.let:
			return answers, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	return a
}

// ask asks on a goroutine of its own and tells what came back.
func (a *asked) ask(ctx context.Context, q int) <-chan result {
	out := make(chan result, 1)
	go func() {
		answer, err := a.do(ctx, q)
		out <- result{answer, err}
	}()
	synctest.Wait()
	return out
}

type result struct {
	answer int
	err    error
}

func TestWhoAsksMeanwhileIsAnsweredTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := gatherInts(3)
		var waiting []<-chan result
		for q := 1; q <= 6; q++ {
			waiting = append(waiting, a.ask(t.Context(), q))
		}
		for range 3 {
			a.let <- nil
		}
		for i, w := range waiting {
			if r := <-w; r.err != nil || r.answer != 2*(i+1) {
				t.Errorf("answer to %d = %d, %v, want twice that", i+1, r.answer, r.err)
			}
		}
		if want := [][]int{{1}, {2, 3, 4}, {5, 6}}; !slices.EqualFunc(a.batches, want, slices.Equal) {
			t.Errorf("asked %v, want %v: the first alone, then as many as wait, three at most", a.batches, want)
		}
	})
}

func TestAFailedQuestionFailsForAllWhoAskedIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := gatherInts(3)
		first, second, third := a.ask(t.Context(), 1), a.ask(t.Context(), 2), a.ask(t.Context(), 3)
		a.let <- nil
		away := errors.New("away")
		a.let <- away
		if r := <-first; r.err != nil {
			t.Errorf("the question before failed too: %v", r.err)
		}
		for _, w := range []<-chan result{second, third} {
			if r := <-w; !errors.Is(r.err, away) {
				t.Errorf("error = %v, want that of the question", r.err)
			}
		}
	})
}

func TestACallerWhoLeavesEndsTheQuestionForNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := gatherInts(3)
		first := a.ask(t.Context(), 1)
		ctx, leave := context.WithCancel(t.Context())
		second, third := a.ask(ctx, 2), a.ask(t.Context(), 3)
		a.let <- nil
		leave()
		if r := <-second; !errors.Is(r.err, context.Canceled) {
			t.Errorf("error of who left = %v, want its own", r.err)
		}
		a.let <- nil
		<-first
		if r := <-third; r.err != nil || r.answer != 6 {
			t.Errorf("answer to who stayed = %d, %v, want 6", r.answer, r.err)
		}
	})
}

// The last who leaves ends the question; who comes then must not join it.
func TestAQuestionThatAllHaveLeftEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := gatherInts(3)
		first := a.ask(t.Context(), 1)
		ctx, leave := context.WithCancel(t.Context())
		left := a.ask(ctx, 2)
		leave()
		synctest.Wait()
		after := a.ask(t.Context(), 3)
		a.let <- nil
		<-first
		if r := <-left; !errors.Is(r.err, context.Canceled) {
			t.Errorf("error of who left = %v, want its own", r.err)
		}
		a.let <- nil
		if r := <-after; r.err != nil || r.answer != 6 {
			t.Errorf("answer to who came after = %d, %v, want 6", r.answer, r.err)
		}
	})
}
