package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// either makes the mutant that evaluates text in place of the boolean expression e.
func (c *collector) either(op string, e ast.Expr, text string) {
	m := c.add(op, c.replace(e, text))
	c.wrapEither(m, e, text)
}

func (c *collector) wrapEither(m *mutant, e ast.Expr, text string) {
	c.wrap(e, fmt.Sprintf("(mutantOn(%d) && (%s) || !mutantOn(%d) && (", m.id, text, m.id), "))")
}

// condition breaks what an if asks, or a function answers. Its plain negation would say little: it fails wherever the code
// runs at all.
func (c *collector) condition(e ast.Expr) {
	if c.isBool(e) {
		c.either(opAlways, e, "true")
		c.either(opNever, e, "false")
	}
}

// loop breaks what a for asks. One that never ends says nothing but that it hangs.
func (c *collector) loop(e ast.Expr) {
	if c.isBool(e) {
		c.either(opNever, e, "false")
	}
}

// caseClause breaks the cases of a switch without a tag.
func (c *collector) caseClause(clause *ast.CaseClause, stack []ast.Node) {
	if s, ok := stack[len(stack)-2].(*ast.SwitchStmt); !ok || s.Tag != nil {
		return
	}
	var edits []edit
	for _, e := range clause.List {
		if !c.isBool(e) {
			return
		}
		edits = append(edits, c.replace(e, "false"))
		c.either(opAlways, e, "true")
	}
	if len(edits) > 0 {
		m := c.add(opNever, edits...)
		for _, e := range clause.List {
			c.wrapEither(m, e, "false")
		}
	}
}

// operands drops each operand of a chain of && or ||, and swaps each two neighbours where the order may matter.
func (c *collector) operands(chain *ast.BinaryExpr) {
	if !c.isBool(chain) {
		return
	}
	var all []ast.Expr
	for e := ast.Expr(chain); ; {
		b, ok := e.(*ast.BinaryExpr)
		if !ok || b.Op != chain.Op {
			all = append([]ast.Expr{e}, all...)
			break
		}
		all, e = append([]ast.Expr{b.Y}, all...), b.X
	}
	neutral := map[token.Token]string{token.LAND: "true", token.LOR: "false"}[chain.Op]
	for i, e := range all {
		if c.isBool(e) {
			m := c.add(opDropOperand, c.replace(chain, c.joined(chain.Op, append(append([]ast.Expr{}, all[:i]...), all[i+1:]...))))
			m.line = c.pos.Position(e.Pos()).Line
			if len(m.before) > 60 {
				m.after = "without " + oneLine(c.of(e))
			}
			c.wrapEither(m, e, neutral)
		}
	}
	for i := range all[1:] {
		if c.ordered(all[i]) && c.ordered(all[i+1]) && c.of(all[i]) != c.of(all[i+1]) {
			swapped := append([]ast.Expr{}, all...)
			swapped[i], swapped[i+1] = all[i+1], all[i]
			c.either(opSwapOperands, chain, c.joined(chain.Op, swapped))
		}
	}
}

func (c *collector) joined(op token.Token, operands []ast.Expr) string {
	texts := make([]string, len(operands))
	for i, e := range operands {
		texts[i] = c.of(e)
	}
	return strings.Join(texts, " "+op.String()+" ")
}

// pure are functions that change nothing but their first argument and cannot fail, by the beginning of their names.
var pure = []string{
	"len", "cap", "min", "max", "append", "make", "new", "delete", "clear", "errors.Is", "strings.", "slices.", "bytes.",
	"(time.Time).", "(time.Duration).", "time.Since", "time.Until", "time.Now", "(error).Error", "(context.Context).Err",
}

// ordered reports whether it may matter when e is evaluated: it calls something that is not known to be pure.
func (c *collector) ordered(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		case *ast.CallExpr:
			found = found || !c.info.Types[n.Fun].IsType() && !c.isPure(n)
		}
		return !found
	})
	return found
}

func (c *collector) isPure(call *ast.CallExpr) bool {
	name := c.called(call)
	for _, p := range pure {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return strings.HasPrefix(name, "(*sync/atomic.") && strings.HasSuffix(name, ").Load")
}

// boundary moves the boundary of a comparison.
func (c *collector) boundary(e *ast.BinaryExpr) {
	other := map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	}[e.Op]
	if c.isBool(e) {
		c.either(opBoundary, e, c.of(e.X)+" "+other.String()+" "+c.of(e.Y))
	}
	// n < 3 and n <= 3 differ as n < 3 and n < 4 do.
	up := e.Op == token.LSS || e.Op == token.GEQ
	c.skip[e.Y] = map[bool]string{true: opPlusOne, false: opMinusOne}[up]
	if t, ok := c.info.Types[e.X].Type.Underlying().(*types.Basic); !ok || t.Info()&types.IsInteger == 0 {
		delete(c.skip, e.Y)
	}
}

// comparedWithLen leaves out len(x) == -1, which is never.
func (c *collector) comparedWithLen(e *ast.BinaryExpr) {
	if call, ok := ast.Unparen(e.X).(*ast.CallExpr); ok && c.called(call) == "len" && c.of(e.Y) == "0" {
		c.skip[e.Y] = opMinusOne
	}
}
