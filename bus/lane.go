package bus

import "sync"

// consumerLane is one consumer's handler and its slots.
type consumerLane struct {
	handler  Handler
	consumer Consumer
	mu       sync.Mutex
	busy     int
	hungry   bool // the last claim filled every slot, so more may be due
}

func (l *consumerLane) free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.consumer.Concurrency - l.busy
}

func (l *consumerLane) take() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy++
}

// give frees a slot and reports whether a claim is worth it.
func (l *consumerLane) give() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	return l.hungry
}

// setHungry records whether more may be due and reports whether there are slots
// for it right now.
func (l *consumerLane) setHungry(full bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hungry = full
	return full && l.busy < l.consumer.Concurrency
}
