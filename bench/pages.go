package bench

// pages is a slice that grows without copying what it holds, so that a large
// one does not need its memory twice.
type pages[T any] struct {
	pages [][]T
	n     int
}

// pageLen is how many elements a page holds.
const pageLen = 1 << 14

func (p *pages[T]) len() int { return p.n }

// at returns element i, 0 ≤ i < len.
func (p *pages[T]) at(i int) *T { return &p.pages[i/pageLen][i%pageLen] }

// grow makes the length n, if it is less, with zero elements.
func (p *pages[T]) grow(n int) {
	for len(p.pages)*pageLen < n {
		p.pages = append(p.pages, make([]T, pageLen))
	}
	p.n = max(p.n, n)
}
