package chain

// vectors are printed by testdata/vectors.py.
var vectors = map[string][]string{
	"16":    {"9c358003784d51781d2d2a5a424cce1a", "e103c8c4ce2614089c7cd12d12d26c00", "b0618556dfbfd60c4f19704b662a4318"},
	"128":   {"5cf1d3e8889e02fc121da8fc62ae6af1", "3c83e403ccd4e5557403bedaccac8b3e", "77a31c7732d7c39fe34659346f8ef04a"},
	"256":   {"9b583b40b7c5836ebfe0813689388c0b", "1963a002cad964874c773e488595c262"},
	"lora":  {"1623008e3763e65bdd963ea920a4a8fa", "0754f184edfc2142bec215b2d8d8fb9a", "92f8e6d7b012557969ba5630d1a06b97"},
	"salt":  {"35c09fc43c1663b9a7e2c922463b25e4", "226e599d095f6ddda69c22aba356ad8b", "91d8aaa4ebdbc6f6a1220203aeb67f68"},
	"model": {"5d91ed2e83c679960b0e83534b946356", "83d263bad3904ebbdc29d2cdbc9447b4", "1af93abdb4eba056e43f8e30a17aa04e"},
}
