package bus

import "sync"

// consumerSlots is one consumer's handler and its slots.
type consumerSlots struct {
	handler  Handler
	consumer Consumer
	mu       sync.Mutex
	busy     int
	hungry   bool // the last claim filled every slot, so more may be due
}

// unknown reports whether d may have had an effect that must not be repeated.
func (s *consumerSlots) unknown(d *Delivery) bool {
	return d.Unknown && s.consumer.Effect == EffectOnce
}

func (s *consumerSlots) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.consumer.Concurrency - s.busy
}

func (s *consumerSlots) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
}

// give frees a slot and reports whether a claim is worth it.
func (s *consumerSlots) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	return s.hungry
}

// setHungry records whether more may be due and reports whether there are slots
// for it right now.
func (s *consumerSlots) setHungry(full bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hungry = full
	return full && s.busy < s.consumer.Concurrency
}
