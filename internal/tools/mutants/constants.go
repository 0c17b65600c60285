package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strconv"
)

// large is from where on an integer is doubled and halved: one more or less of a thousand is no break.
const large = 100

// constant moves a constant that a function uses: a duration or an integer. Named types of integers are lists of names, not
// numbers.
func (c *collector) constant(e ast.Expr, tv types.TypeAndValue, parent ast.Node) {
	if kv, ok := parent.(*ast.KeyValueExpr); ok && kv.Key == e || tv.Value.Kind() != constant.Int || isRune(e) {
		return
	}
	if id, ok := e.(*ast.Ident); ok && c.names[c.info.Uses[id]] {
		return
	}
	if r, ok := parent.(*ast.ReturnStmt); ok && c.fails(r) {
		return
	}
	if call, ok := parent.(*ast.CallExpr); ok && c.called(call) == "make" && c.isHint(call, e) {
		return
	}
	if name, ok := c.duration(tv.Type); ok {
		c.scale(e, name, tv.Value)
		return
	}
	t, ok := tv.Type.(*types.Basic)
	if !ok || t.Info()&types.IsInteger == 0 || t.Info()&types.IsUntyped != 0 {
		return
	}
	if v, exact := constant.Int64Val(constant.ToInt(tv.Value)); exact && v > -large && v < large {
		c.pick(opPlusOne, e, t.Name(), c.moved(e, tv.Value, token.ADD, 1))
		if v > 0 || t.Info()&types.IsUnsigned == 0 {
			c.pick(opMinusOne, e, t.Name(), c.moved(e, tv.Value, token.SUB, 1))
		}
	} else if constant.BitLen(tv.Value) < 31 {
		c.scale(e, t.Name(), tv.Value)
	}
}

// fails reports whether a return gives an error, or false, beside values that callers ignore then.
func (c *collector) fails(r *ast.ReturnStmt) bool {
	last := c.info.Types[r.Results[len(r.Results)-1]]
	if last.Value != nil && last.Value.Kind() == constant.Bool {
		return !constant.BoolVal(last.Value)
	}
	return isError(last.Type) && !last.IsNil()
}

// isHint reports whether an argument of make is but a hint: all that a map gets, and the capacity of a slice.
func (c *collector) isHint(call *ast.CallExpr, e ast.Expr) bool {
	switch c.info.Types[call.Args[0]].Type.Underlying().(type) {
	case *types.Map:
		return true
	case *types.Slice:
		return len(call.Args) == 3 && call.Args[2] == e
	}
	return false
}

// duration is the name of time.Duration in this file, if t is that.
func (c *collector) duration(t types.Type) (string, bool) {
	if types.TypeString(t, nil) != "time.Duration" {
		return "", false
	}
	for _, i := range c.ast.Imports {
		if path, err := strconv.Unquote(i.Path.Value); err != nil || path != "time" {
			continue
		}
		if i.Name != nil {
			return i.Name.Name + ".Duration", true
		}
		return "time.Duration", true
	}
	return "", false // a constant of another package: without the import its type has no name here
}

// scale doubles and halves a constant.
func (c *collector) scale(e ast.Expr, typeName string, v constant.Value) {
	if constant.Sign(v) != 0 {
		c.pick(opDouble, e, typeName, c.moved(e, v, token.MUL, 2))
	}
	if constant.Compare(v, token.NEQ, constant.MakeInt64(1)) && constant.Sign(v) != 0 {
		c.pick(opHalve, e, typeName, c.moved(e, v, token.QUO_ASSIGN, 2))
	}
}

// moved is the text of e after an operation with n: a number if e is one, else an expression.
func (c *collector) moved(e ast.Expr, v constant.Value, op token.Token, n int64) string {
	if _, ok := e.(*ast.BasicLit); ok {
		return constant.BinaryOp(v, op, constant.MakeInt64(n)).ExactString()
	}
	text := c.of(e)
	if _, ok := e.(*ast.BinaryExpr); ok {
		text = "(" + text + ")"
	}
	sign := map[token.Token]string{token.ADD: "+", token.SUB: "-", token.MUL: "*", token.QUO_ASSIGN: "/"}[op]
	return fmt.Sprintf("%s %s %d", text, sign, n)
}

// flip turns true into false and back.
func (c *collector) flip(e ast.Expr) {
	id, ok := e.(*ast.Ident)
	if !ok || !types.Identical(types.Default(c.info.Types[e].Type), types.Typ[types.Bool]) {
		return
	}
	switch c.info.Uses[id] {
	case types.Universe.Lookup("true"):
		c.pick(opFlip, e, "bool", "false")
	case types.Universe.Lookup("false"):
		c.pick(opFlip, e, "bool", "true")
	}
}

// pick makes the mutant that has the constant text in place of the constant e.
func (c *collector) pick(op string, e ast.Expr, typeName, text string) {
	if c.skip[e] == op {
		return
	}
	m := c.add(op, c.replace(e, text))
	c.wrap(e, fmt.Sprintf("mutantPick[%s](%d, %s, ", typeName, m.id, text), ")")
}

func isRune(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.CHAR
}
