"""Each marked line is a mistake that a type checker finds."""
import koine
from koine import Tensor, nn

x = Tensor([1.0])
x.reshpe(1)  # wrong: attr-defined
nn.Linear(3)  # wrong: call-arg
nn.Linear("a", 2)  # wrong: arg-type
nn.Linear(3, 2, bais=True)  # wrong: call-arg
x.sum(dim=0)  # wrong: call-arg
x.softmax("a")  # wrong: arg-type
n: int = x.square()  # wrong: assignment
koine.manual_seed("a")  # wrong: arg-type
nn.Adam([x], lr=1e-3)  # wrong: call-arg
koine.shedule(x)  # wrong: attr-defined
x.shape = (1,)  # wrong: misc
