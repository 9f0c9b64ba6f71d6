"""Completion in PowerShell, which click has none for."""

import os

from click.shell_completion import CompletionItem, ShellComplete

_SOURCE = r"""Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $env:%(complete_var)s = "powershell_complete"
    $env:COMP_WORDS = @($commandAst.CommandElements | ForEach-Object { $_.Extent.Text }) -join "`n"
    $env:COMP_INCOMPLETE = $wordToComplete
    try {
        %(prog_name)s | ForEach-Object {
            $value, $help = $_ -split "`t", 2
            [System.Management.Automation.CompletionResult]::new($value, $value, "ParameterValue", $help)
        }
    } finally {
        Remove-Item Env:%(complete_var)s, Env:COMP_WORDS, Env:COMP_INCOMPLETE
    }
}
"""


class PowerShellComplete(ShellComplete):
    """Asked by the script with the words of the line, one each; answers values with what they are for."""

    name = "powershell"
    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one; words may stand in quotes."""
        incomplete = os.environ["COMP_INCOMPLETE"]
        _, *words = os.environ["COMP_WORDS"].split("\n")
        if incomplete and words and words[-1] == incomplete:
            words.pop()
        return [_unquoted(word) for word in words], _unquoted(incomplete)

    def complete(self) -> str:
        """One line for each value. Of files there is none: then PowerShell offers those that there are."""
        args, incomplete = self.get_completion_args()
        found = self.get_completions(args, incomplete)
        return "\n".join(self.format_completion(item) for item in found if item.type == "plain")

    def format_completion(self, item: CompletionItem) -> str:
        """The value and its help, which PowerShell does not take empty."""
        return f"{item.value}\t{' '.join((item.help or str(item.value)).split())}"


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word
