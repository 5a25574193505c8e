package edge

// What checking an answer may cost. Schemas can be small and their cost exponential in the depth of an answer: an anyOf of two schemas that both
// apply the whole to the same member doubles it with every level. No library bounds that, so that it is bounded here, before the check: from
// the schema follows how many schemas are at most applied along one path from an answer's root to a leaf, for answers of every depth; times
// the answer's size, that is all that can happen.
const (
	maxVisits   = 500_000    // schemas applied to values, comparisons included: 0.5 s at worst
	maxSteps    = 20_000_000 // bytes of strings times instructions of the regular expressions they meet: 0.4 s at worst
	explainable = 20_000     // visits up to which a refusal is worth a second look for its reason
	maxInPlace  = 64         // schemas that apply one another to one value, in a row
	tooMuch     = 1 << 40
)

// costs are a schema's, by the depth of the answer.
type costs struct {
	visits [maxAnswerDepth + 1]int64
	steps  [maxAnswerDepth + 1]int64
	unique bool
}

// of is the cost of checking an answer, and whether it is bearable.
func (c *costs) of(answer *node) (visits int64, bearable bool) {
	values, bytes, depth := answer.size()
	weight := int64(values + bytes/64)
	if c.unique {
		weight += int64(values) * int64(values) / 256 // entries can be made to collide in the library's hash
	}
	visits = capped(weight, c.visits[depth])
	return visits, visits <= maxVisits && capped(int64(bytes), c.steps[depth]) <= maxSteps
}

func capped(a, b int64) int64 {
	if a > 0 && b > tooMuch/a {
		return tooMuch
	}
	return a * b
}

// weigh resolves what was read and works out what it can cost.
func (w *walker) weigh() (c costs, refused *FieldError) {
	for _, p := range w.parts {
		for _, uses := range [][]*edge{p.here, p.below.fixed, p.below.each} {
			for _, use := range uses {
				i, ok := w.places[use.at]
				if !ok {
					return c, placed(p, under("$ref", problem("names a place without a schema")))
				}
				use.part = i
			}
		}
	}
	order, refused := w.inPlaceOrder()
	if refused != nil {
		return c, refused
	}
	c.unique = w.unique
	visits, steps := make([]int64, len(w.parts)), make([]int64, len(w.parts))
	for depth := range c.visits {
		// visits and steps hold those of the depth before, for what lies below; what applies in place comes earlier in the order.
		nextVisits, nextSteps := make([]int64, len(w.parts)), make([]int64, len(w.parts))
		for _, i := range order {
			p := w.parts[i]
			nextVisits[i] = p.sum(int64(p.weight), nextVisits, visits, depth)
			nextSteps[i] = p.sum(int64(p.program), nextSteps, steps, depth)
		}
		visits, steps = nextVisits, nextSteps
		c.visits[depth], c.steps[depth] = visits[0], steps[0]
	}
	if c.visits[2] > maxVisits/4 {
		return c, problem("applies too many schemas to one value")
	}
	return c, nil
}

// sum is a part's cost along the costliest path below one value.
func (p *part) sum(own int64, here, below []int64, depth int) int64 {
	for _, use := range p.here {
		own += here[use.part]
	}
	if depth > 0 {
		var most int64
		for _, use := range p.below.fixed {
			most = max(most, below[use.part])
		}
		own += most
		for _, use := range p.below.each {
			own += below[use.part]
		}
	}
	return min(own, tooMuch)
}

// inPlaceOrder sorts the parts so that each comes after those that it applies to the same value. A part that applies itself so would never
// end, and a long row of them costs the library its square.
func (w *walker) inPlaceOrder() ([]int, *FieldError) {
	order := make([]int, 0, len(w.parts))
	height := make([]int, len(w.parts)) // 0: not seen; -1: being visited
	var visit func(i int) *FieldError
	visit = func(i int) *FieldError {
		if height[i] < 0 {
			return placed(w.parts[i], problem("applies itself to the same value, without an end"))
		}
		if height[i] > 0 {
			return nil
		}
		height[i] = -1
		tallest := 0
		for _, use := range w.parts[i].here {
			if refused := visit(use.part); refused != nil {
				return refused
			}
			tallest = max(tallest, height[use.part])
		}
		if height[i] = tallest + 1; height[i] > maxInPlace {
			return placed(w.parts[i], problem("applies more than %d schemas in a row to one value", maxInPlace))
		}
		order = append(order, i)
		return nil
	}
	for i := range w.parts {
		if refused := visit(i); refused != nil {
			return nil, refused
		}
	}
	return order, nil
}

// placed names the part that an error is about.
func placed(p *part, e *FieldError) *FieldError { return path(p.location(), e) }
